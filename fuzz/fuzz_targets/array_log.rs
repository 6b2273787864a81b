//! A log of array writes, and the header of a netCDF file, as found on a file system: arbitrary bytes, and whole records of
//! arbitrary bodies. What a log says is used as a replay does.
#![no_main]

use weir_arrays::batch::{batch_ends, joined};
use weir_arrays::header::FileHeader;
use weir_arrays::log::{BlockMap, LogContents, LogRecord};
use weir_fuzz::parts;

/// More elements than a small log can have.
const DATA_BYTES: u64 = 1 << 12;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, bytes @ ..] = data else { return };
    let records = match kind % 3 {
        0 => {
            if let Ok(header) = FileHeader::read(bytes) {
                assert!(header.is_that_of(&header.definitions));
            }
            return;
        }
        1 => {
            let Ok(map) = BlockMap::from_head(bytes) else {
                return;
            };
            map.stream(0, bytes.get(64..).unwrap_or_default())
        }
        _ => {
            let mut records = Vec::new();
            for (_, part) in parts(bytes) {
                LogRecord::append_body(part, &mut records);
            }
            records
        }
    };
    let contents = LogContents::read(&records, DATA_BYTES);
    let entries = joined(contents.entries.iter());
    let ends = batch_ends(&contents.definitions, &entries, 100);
    assert_eq!(ends.last().copied().unwrap_or(0), entries.len());
    for entry in &contents.entries {
        let variable = &contents.definitions.variables[entry.variable as usize];
        let elements = entry.part.elements().expect("a valid entry");
        let mut placed = 0;
        let record_bytes = contents.definitions.record_bytes;
        if variable
            .for_file_runs(record_bytes, &entry.part, |run| placed += run.count)
            .is_some()
        {
            assert_eq!(placed, elements);
        }
        let mut common = 0;
        entry
            .part
            .for_common_runs(&entry.part, |run| common += run.count);
        assert_eq!(common, elements);
    }
});

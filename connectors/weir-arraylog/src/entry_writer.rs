//! Writes an entry of a log into the file: converts its elements, a window at a time, and writes them at the variable's offsets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use weir_arrays::definitions::FileDefinitions;
use weir_arrays::log::LogEntry;

/// Bytes of elements that are read and converted at a time: the two copies fit into a core's cache.
const WINDOW_BYTES: usize = 256 << 10;

/// The buffers of a window, reused for each entry.
#[derive(Debug, Default)]
pub struct EntryWriter {
    native: Vec<u8>,
    external: Vec<u8>,
}

impl EntryWriter {
    /// Writes an entry, and returns the number of bytes that it has in the file. `read_elements` reads elements of the log at an
    /// offset. An entry that is not valid is skipped ([`weir_arrays::log::LogContents`] has none).
    ///
    /// # Errors
    ///
    /// Errors of reading the log and of writing the file; a part of the entry may have been written. `FileTooLarge`: an element
    /// lies beyond the greatest offset; nothing was written.
    pub fn write_entry(
        &mut self,
        file: &File,
        definitions: &FileDefinitions,
        entry: &LogEntry,
        mut read_elements: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let (Some(conversion), Some(elements)) =
            (entry.conversion(definitions), entry.part.elements())
        else {
            return Ok(0);
        };
        let variable = &definitions.variables[entry.variable as usize];
        let (from, to) = (entry.memory.bytes(), variable.external.bytes());
        let window = (WINDOW_BYTES / from.max(to)) as u64;
        // The runs of a part come in the order of its elements, so each window begins where the one before it ended.
        let (mut begin, mut end) = (0, 0);
        let mut result = Ok(());
        let placed = variable.for_file_runs(definitions.record_bytes, &entry.part, |run| {
            let mut done = 0;
            while done < run.count && result.is_ok() {
                let at = run.first + done;
                if at == end {
                    (begin, end) = (end, elements.min(end + window));
                    self.native.resize(as_length(end - begin) * from, 0);
                    self.external.clear();
                    result = read_elements(entry.data + begin * from as u64, &mut self.native);
                    conversion.to_external(&self.native, &variable.fill, &mut self.external);
                }
                let count = (run.count - done).min(end - at);
                let first = as_length(at - begin) * to;
                let piece = &self.external[first..first + as_length(count) * to];
                let offset = run.offset + done * to as u64;
                if result.is_ok() {
                    result = file.write_all_at(piece, offset);
                }
                done += count;
            }
        });
        result?;
        placed.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(elements * to as u64)
    }
}

fn as_length(elements: u64) -> usize {
    usize::try_from(elements).expect("at most those of a window")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_arrays::definitions::Variable;
    use weir_arrays::element::ElementType;
    use weir_arrays::subarray::{Range, Subarray};

    /// 5 records of 3 planes of 100 rows, of which every second row and its columns 10 to 60 are written: a run is less than a
    /// window, and windows end within runs.
    #[test]
    fn windows_go_on_where_the_last_one_ended() {
        let variable = |name: &str, begin| Variable {
            name: name.into(),
            external: ElementType::I64,
            shape: vec![0, 3, 100, 70],
            is_record: true,
            begin,
            fill: vec![0; 8],
        };
        let record = 3 * 100 * 70 * 8;
        let definitions = FileDefinitions {
            is_cdf5: true,
            record_bytes: 2 * record,
            variables: vec![variable("a", 1000), variable("b", 1000 + record)],
        };
        let rows = Range {
            start: 1,
            count: 50,
            stride: 2,
        };
        let columns = Range::new(10, 51);
        let part = Subarray([Range::new(2, 5), Range::new(0, 3), rows, columns].into());
        let entry = LogEntry {
            variable: 1,
            memory: ElementType::I32,
            part: part.clone(),
            data: 12,
            stamp_ns: 0,
        };
        let elements = part.elements().unwrap();
        assert!(elements > WINDOW_BYTES as u64 / 8);
        let file = tempfile::tempfile().unwrap();
        let mut next = 12;
        let written = EntryWriter::default().write_entry(&file, &definitions, &entry, |at, out| {
            assert_eq!(at, next);
            next += out.len() as u64;
            for (index, element) in out.chunks_exact_mut(4).enumerate() {
                let number = i32::try_from((at - 12) / 4 + index as u64).unwrap();
                element.copy_from_slice(&number.to_ne_bytes());
            }
            Ok(())
        });
        assert_eq!((written.unwrap(), next), (elements * 8, 12 + elements * 4));
        let mut number = 0;
        for r in 2..7 {
            for z in 0..3 {
                for y in (1..100).step_by(2) {
                    for x in 10..61 {
                        let place = 1000 + record + r * 2 * record + ((z * 100 + y) * 70 + x) * 8;
                        let mut element = [0; 8];
                        file.read_exact_at(&mut element, place).unwrap();
                        assert_eq!(i64::from_be_bytes(element), number);
                        number += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn an_error_of_the_log_writes_nothing() {
        let variable = Variable {
            name: "a".into(),
            external: ElementType::I32,
            shape: vec![8],
            is_record: false,
            begin: 0,
            fill: vec![0; 4],
        };
        let definitions = FileDefinitions {
            is_cdf5: false,
            record_bytes: 0,
            variables: vec![variable],
        };
        let entry = LogEntry {
            variable: 0,
            memory: ElementType::I32,
            part: Subarray([Range::new(0, 8)].into()),
            data: 0,
            stamp_ns: 0,
        };
        let file = tempfile::tempfile().unwrap();
        let broken = |_, _: &mut [u8]| Err(io::Error::from_raw_os_error(5));
        let error = EntryWriter::default().write_entry(&file, &definitions, &entry, broken);
        assert_eq!(error.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}

//! Runs as other processes and servers send them: refused, or right byte for byte.
#![no_main]

use weir_core::extent::{ExtentIndex, PieceSource, Run, Source};
use weir_fuzz::parts;

/// The length of files and logs that are compared with a table of all bytes.
const BYTES: usize = 4096;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut index = ExtentIndex::new();
    // For every byte of the file: the stamp in force, and the position of the byte.
    let mut model: Vec<Option<(u64, PieceSource)>> = vec![None; BYTES];
    for (stamp, (kind, part)) in (1..).zip(parts(data)) {
        let run = match kind % 2 {
            0 => postcard::from_bytes::<Run>(part).ok(),
            _ => Some(small_run(part)),
        };
        let Some(run) = run else { continue };
        let Ok(run) = (Run { stamp, ..run }).checked() else {
            assert!(index.insert(run, &mut |_| ()).is_err(), "it is refused");
            continue;
        };
        let near = run.end() <= BYTES as u64 && run.count <= BYTES as u64;
        if !near {
            // Beyond the table only the arithmetic is tested.
            let mut other = ExtentIndex::new();
            let _ = other.insert(run, &mut |_| ());
            let mut out = Vec::new();
            other.runs_in(run.offset, run.end(), 16, &mut out);
            assert!(!out.is_empty(), "a run that was taken is there");
            run.clip_to(run.offset + run.length / 2, run.end(), &mut out);
            continue;
        }
        for piece in (0..run.count).map(|i| run.piece(i)) {
            for k in 0..piece.length {
                let at = usize::try_from(piece.offset + k).expect("near");
                model[at] = Some((stamp, piece.source.advanced(k)));
            }
        }
        index.insert(run, &mut |_| ()).expect("it was checked");
    }
    let mut found: Vec<Option<(u64, PieceSource)>> = vec![None; BYTES];
    index.for_each_piece_in(0, BYTES as u64, &mut |piece| {
        for k in 0..piece.length {
            let at = usize::try_from(piece.offset + k).expect("within the range");
            assert!(found[at].is_none(), "a byte is in two pieces");
            found[at] = Some((piece.stamp, piece.source.advanced(k)));
        }
    });
    // A byte never written is reported as a hole of stamp 0, or not at all.
    let written = |b: &Option<(u64, PieceSource)>| b.filter(|b| b.1 != PieceSource::Hole);
    for (at, (found, right)) in found.iter().zip(&model).enumerate() {
        assert_eq!(written(found), written(right), "byte {at}");
    }
});

/// A run within the table, which is valid more often than arbitrary bytes.
fn small_run(part: &[u8]) -> Run {
    let byte = |i: usize| u64::from(part.get(i).copied().unwrap_or(0));
    let length = byte(1) % 64 + 1;
    let hole = byte(5) % 8 == 0;
    Run {
        offset: byte(0) * 4,
        length,
        stride: length + byte(2) % 64,
        count: byte(3) % 16 + 1,
        stamp: 0,
        source: if hole {
            Source::Hole
        } else {
            Source::Log {
                rank: 0,
                slab: 1,
                pos: byte(4) * 16,
                pos_stride: length,
            }
        },
    }
}

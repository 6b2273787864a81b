//! Writes and reads of one file in turns, by programs that exchange their bytes through it.
//!
//! In lock-step each turn's content is another one, so that bytes of an earlier turn are seen. A
//! process whose bytes are wrong goes on to its last turn: the others would wait for it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::content::{Content, Mismatch};
use crate::error::StepError;
use crate::links::{AtBarrier, BarrierHolder};
use crate::pieces::FilePieces;
use crate::timing::{now_ns, timing_since, Prepared};

/// How much further in the content each turn's bytes begin: no two of 4093 turns have the same.
const SHIFT: u64 = 64;

/// Writes and reads of a file in turns: in each, own bytes are written, then those of another
/// process are read and compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixed {
    /// The bytes that the process writes in each turn, in calls of `size`, without lists.
    pub write: FilePieces,
    /// The bytes that the process reads in each turn, likewise.
    pub read: FilePieces,
    /// Turns.
    pub turns: u32,
    /// Each turn's writes end with `fsync`.
    pub fsync: bool,
    /// The barrier at which all meet after the writes and after the reads of each turn. With it the
    /// content differs from turn to turn; without it, when nobody can tell of which turn the bytes
    /// are, it is always the same.
    pub barrier: Option<BarrierHolder>,
}

/// Opens the file, which is there, and connects to the barrier.
pub fn mixed(mixed: &Mixed) -> Result<Prepared<'_>> {
    let path = &mixed.write.path;
    let open = File::options().read(true).write(true).open(path);
    let file = open.with_context(|| path.display().to_string())?;
    let (to_write, to_read) = (content_of(&mixed.write)?, content_of(&mixed.read)?);
    let mut buffer = vec![1; mixed.read.size()?];
    let to_write_at = mixed.write.sequence().offsets();
    let to_read_at = mixed.read.sequence().offsets();
    let meeting = mixed.barrier.as_ref();
    let mut barrier = meeting.map(AtBarrier::connect).transpose()?;
    Ok(Box::new(move || {
        let size = mixed.write.size()?;
        let mut wrong = None;
        let start_ns = now_ns();
        for turn in 0..u64::from(mixed.turns) {
            let shift = match barrier {
                Some(_) => (turn + 1) * SHIFT,
                None => 0,
            };
            for offset in to_write_at.iter().copied() {
                let at = to_write.position(offset + shift);
                file.write_all_at(&to_write.bytes()[at..at + size], offset)?;
            }
            if mixed.fsync {
                file.sync_all()?;
            }
            if let Some(barrier) = &mut barrier {
                barrier.wait()?;
            }
            for offset in to_read_at.iter().copied() {
                file.read_exact_at(&mut buffer, offset)?;
                let compared = to_read.check(offset + shift, &buffer);
                wrong = wrong.or(compared.err().map(|wrong| Mismatch {
                    offset: wrong.offset - shift,
                    ..wrong
                }));
            }
            if let Some(barrier) = &mut barrier {
                barrier.wait()?;
            }
        }
        let turns = u64::from(mixed.turns);
        let bytes = to_read_at.len() as u64 * mixed.read.size * turns;
        let did = timing_since(start_ns, bytes, u64::from(mixed.turns));
        match wrong {
            Some(wrong) => Err(StepError::WrongData {
                path: path.clone(),
                found: wrong,
            }
            .into()),
            None => Ok(did),
        }
    }))
}

fn content_of(data: &FilePieces) -> Result<Content> {
    Ok(Content::new(data.seed, data.size()?, data.direct)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links;
    use crate::timing::Timing;
    use std::net::Ipv4Addr;
    use std::path::Path;

    const TURNS: u32 = 5;

    fn part(path: &Path, number: u64) -> FilePieces {
        FilePieces::contiguous(path, number * 4096, 4096, 4096, 3)
    }

    /// Two that exchange their parts; what each did.
    fn two(path: &Path, seeds: [u64; 2]) -> [Result<Timing>; 2] {
        let listener = links::listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let token = [3; 16];
        let meeting = BarrierHolder {
            address: listener.local_addr().unwrap(),
            token,
        };
        File::create(path).unwrap();
        let each = [0, 1].map(|number| Mixed {
            write: part(path, number),
            read: FilePieces {
                seed: seeds[usize::try_from(number).unwrap()],
                ..part(path, 1 - number)
            },
            turns: TURNS,
            fsync: true,
            barrier: Some(meeting.clone()),
        });
        let each = each.map(|one| std::thread::spawn(move || mixed(&one).unwrap()()));
        let held = links::barrier(Some(&listener), 2, 2 * TURNS, &token).unwrap()().unwrap();
        assert_eq!(held.ops, u64::from(2 * TURNS));
        each.map(|one| one.join().unwrap())
    }

    #[test]
    fn each_turn_is_seen_by_the_other() {
        let dir = tempfile::tempdir().unwrap();
        for did in two(&dir.path().join("f"), [3, 3]) {
            assert_eq!(did.unwrap().bytes, u64::from(TURNS) * 4096);
        }
    }

    #[test]
    fn wrong_bytes_are_told_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = two(&dir.path().join("f"), [3, 4]);
        assert!(first.is_ok());
        let wrong = second.unwrap_err();
        assert!(wrong.is::<StepError>(), "{wrong}");
        assert!(wrong.to_string().contains("at offset 0"), "{wrong}");
    }

    #[test]
    fn without_a_barrier_the_content_stays_and_stale_bytes_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        File::create(&path).unwrap().set_len(8192).unwrap();
        let of = |read| Mixed {
            write: part(&path, 0),
            read: part(&path, read),
            turns: TURNS,
            fsync: false,
            barrier: None,
        };
        assert_eq!(mixed(&of(0)).unwrap()().unwrap().ops, u64::from(TURNS));
        let unwritten = mixed(&of(1)).unwrap()().unwrap_err();
        assert!(unwritten.to_string().contains("found 0x00"), "{unwritten}");
    }
}

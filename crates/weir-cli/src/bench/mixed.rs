//! Writes and reads of one file in turns, by programs that exchange their bytes through it.
//!
//! In lock-step each turn's content is another one, so that bytes of an earlier turn are seen. A
//! process whose bytes are wrong goes on to its last turn: the others would wait for it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result};
use weir_bench::parts::Mismatch;

use super::files::{content, differs, done, size, Prepared};
use super::link::AtBarrier;
use super::wire::Mixed;

/// How much further in the content each turn's bytes begin: no two of 4093 turns have the same.
const SHIFT: u64 = 64;

/// Opens the file, which is there, and connects to the barrier.
pub fn mixed(mixed: &Mixed) -> Result<Prepared<'_>> {
    let path = &mixed.write.path;
    let open = File::options().read(true).write(true).open(path);
    let file = open.with_context(|| path.display().to_string())?;
    let (to_write, to_read) = (content(&mixed.write)?, content(&mixed.read)?);
    let mut buffer = vec![1; size(mixed.read.size)?];
    let meeting = mixed.barrier.as_ref();
    let mut barrier = meeting.map(AtBarrier::connect).transpose()?;
    Ok(Box::new(move || {
        let size = size(mixed.write.size)?;
        let mut wrong = None;
        let begin = Instant::now();
        for turn in 0..u64::from(mixed.turns) {
            let shift = match barrier {
                Some(_) => (turn + 1) * SHIFT,
                None => 0,
            };
            for offset in mixed.write.offsets() {
                let at = to_write.position(offset + shift);
                file.write_all_at(&to_write.bytes()[at..at + size], offset)?;
            }
            if mixed.fsync {
                file.sync_all()?;
            }
            if let Some(barrier) = &mut barrier {
                barrier.wait()?;
            }
            for offset in mixed.read.offsets() {
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
        let bytes = mixed.read.bytes() * u64::from(mixed.turns);
        let did = done(begin, bytes, u64::from(mixed.turns));
        match wrong {
            Some(wrong) => Err(differs(path, wrong).into()),
            None => Ok(did),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::link;
    use super::super::wire::{Data, Done, Meeting};
    use super::*;
    use std::net::Ipv4Addr;
    use std::path::Path;

    const TURNS: u32 = 5;

    fn part(path: &Path, number: u64) -> Data {
        Data {
            path: path.to_owned(),
            first: number * 4096,
            stride: 4096,
            count: 1,
            size: 4096,
            list: 1,
            seed: 3,
        }
    }

    /// Two that exchange their parts; what each did.
    fn two(path: &Path, seeds: [u64; 2]) -> [Result<Done>; 2] {
        let listener = link::listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let token = [3; 16];
        let meeting = Meeting {
            address: listener.local_addr().unwrap(),
            token,
        };
        File::create(path).unwrap();
        let each = [0, 1].map(|number| Mixed {
            write: part(path, number),
            read: Data {
                seed: seeds[usize::try_from(number).unwrap()],
                ..part(path, 1 - number)
            },
            turns: TURNS,
            fsync: true,
            barrier: Some(meeting.clone()),
        });
        let each = each.map(|one| std::thread::spawn(move || mixed(&one).unwrap()()));
        let held = link::barrier(Some(&listener), 2, 2 * TURNS, &token).unwrap()().unwrap();
        assert_eq!(held.calls, u64::from(2 * TURNS));
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
        assert!(wrong.is::<weir_bench::parts::WrongData>(), "{wrong}");
        assert!(wrong.to_string().contains("byte 0 is"), "{wrong}");
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
        assert_eq!(mixed(&of(0)).unwrap()().unwrap().calls, u64::from(TURNS));
        let unwritten = mixed(&of(1)).unwrap()().unwrap_err();
        assert!(unwritten.to_string().contains("is 0x00"), "{unwritten}");
    }
}

//! The copy of one file: into a part beside the target, which gets the target's name when it is whole.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weir_client::types::{Stat, Time};

use crate::error::MoveError;
use crate::publish::{
    check_kind, create_part, is_same, make_hard_link, part_of, publish_name, LinkOutcome,
};
use crate::sources::StagePair;
use crate::stripe::{StripeSize, IO_BYTES};
use crate::tree::{
    failed_with, failed_with_any, identity, io_error, kind_of, FileTree, KeptAttributes, NodeKind,
    PART_MODE,
};

/// The units in which file systems store times, nanoseconds: ext4 and weir, SMB, many FUSE file systems, NFS servers,
/// Lustre.
const TIME_GRAINS: [i64; 5] = [1, 100, 1000, 1_000_000, 1_000_000_000];
/// Two writes within this many seconds may leave the same time: the coarsest unit, and the clocks of two nodes may differ a
/// little.
const LONGEST_TICK: i64 = 2;

/// How a move recognises a file that is on the target already.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum LikenessBy {
    /// By its size and times, and by its bytes if these leave a doubt.
    #[default]
    Times,
    /// By its bytes.
    Bytes,
}

/// Is the target the result of a move of this source? The answer that size and times give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Likeness {
    /// It is not.
    Different,
    /// It is, unless the source was written again within a clock tick: the move came so soon after the last write that both
    /// versions may have the same time. Only the bytes can tell.
    Perhaps,
    /// It is.
    Same,
}

/// Compares a source with the node that has its target's name.
pub fn likeness(source: &Stat, target: &Stat) -> Likeness {
    let is_like = kind_of(target) == NodeKind::File
        && source.size == target.size
        && is_kept_time(source.mtime, target.mtime);
    let is_long_after = target.ctime.sec > source.mtime.sec.saturating_add(LONGEST_TICK);
    match is_like {
        false => Likeness::Different,
        true if is_long_after => Likeness::Same,
        true => Likeness::Perhaps,
    }
}

/// True if `kept` may be `time` as stored by a file system with coarser times.
pub(crate) fn is_kept_time(time: Time, kept: Time) -> bool {
    let mut grains = TIME_GRAINS.iter();
    time.sec == kept.sec && grains.any(|grain| time.nsec - time.nsec % grain == kept.nsec)
}

/// A part that was made before, and is opened again.
#[derive(Clone, Copy, Debug)]
pub struct KnownPart<'p> {
    /// Its path.
    pub path: &'p Path,
    /// Its inode number. If it differs, another file has the path.
    pub inode: u64,
}

/// A file that is being copied. Unless it is published, its part is removed; a resumed part keeps its name.
#[derive(Debug)]
pub struct FileCopy<'t, S: FileTree, T: FileTree> {
    trees: (&'t S, &'t T),
    source: PathBuf,
    target: PathBuf,
    part: OpenPart<'t, T>,
    /// The source, before its first byte was read.
    before: Stat,
    /// The node that had the target's name then.
    replaced: Option<Stat>,
    input: S::File,
    /// The stripes of the part.
    stripe: StripeSize,
    /// The permission bits that the part was made with, if the file system accepted them.
    mode: u32,
    /// The CRC32C of each range that was written.
    sums: Mutex<Vec<(Range<u64>, u32)>>,
    /// A name that the part keeps.
    kept_name: Option<PathBuf>,
}

impl<'t, S: FileTree, T: FileTree> FileCopy<'t, S, T> {
    /// Opens the source and makes the part. `replaced`: the node that has the target's name now.
    pub fn begin(
        from: &'t S,
        to: &'t T,
        source: &Path,
        target: &Path,
        replaced: Option<Stat>,
    ) -> Result<FileCopy<'t, S, T>, MoveError> {
        let (input, before) = open_source(from, source)?;
        check_kind(target, replaced.as_ref(), NodeKind::File)?;
        let part = part_of(target);
        let is_small = before.size <= IO_BYTES;
        let mode = match is_small {
            true => before.mode & 0o777 | PART_MODE,
            false => PART_MODE,
        };
        let output = create_part(to, &part, mode).map_err(|error| {
            match failed_with(&error, Errno::BUSY) {
                true => MoveError::Busy(target.to_owned()),
                false => MoveError::io("creating", &part)(error),
            }
        })?;
        let stripe = stripe_of(to, &output, before.size);
        let copy = FileCopy {
            trees: (from, to),
            source: source.to_owned(),
            target: target.to_owned(),
            part: OpenPart {
                to,
                path: part,
                file: output,
                is_removed: true,
            },
            before,
            replaced,
            input,
            stripe,
            mode,
            sums: Mutex::default(),
            kept_name: None,
        };
        // Makes room for holes at the end, and for the pieces that others write. A small file is written by one call;
        // `make_ready` sets its size if it ends with a hole.
        if !is_small {
            copy.set_size()?;
        }
        Ok(copy)
    }

    /// Opens the source, and a part that has some of its bytes. The part keeps its name even if the copy fails.
    pub fn resume(
        from: &'t S,
        to: &'t T,
        pair: &StagePair,
        part: KnownPart<'_>,
        replaced: Option<Stat>,
    ) -> Result<FileCopy<'t, S, T>, MoveError> {
        let (source, target) = (&*pair.source, &*pair.target);
        let KnownPart { path: part, inode } = part;
        let (input, before) = open_source(from, source)?;
        check_kind(target, replaced.as_ref(), NodeKind::File)?;
        let writing = || MoveError::io("writing", part);
        let output = to.open_part(part).map_err(writing())?;
        if to.stat(&output).map_err(writing())?.ino != inode {
            return Err(MoveError::TargetChanged(part.to_owned()));
        }
        to.set_size(&output, before.size).map_err(writing())?;
        let stripe = stripe_of(to, &output, before.size);
        Ok(FileCopy {
            trees: (from, to),
            source: source.to_owned(),
            target: target.to_owned(),
            part: OpenPart {
                to,
                path: part.to_owned(),
                file: output,
                is_removed: false,
            },
            before,
            replaced,
            input,
            stripe,
            mode: PART_MODE,
            sums: Mutex::default(),
            kept_name: Some(part.to_owned()),
        })
    }

    /// Writes zeros over the data that the part has in the source's holes, within a range: the part may have had other
    /// bytes there.
    pub fn clear_holes(&self, within: Range<u64>) -> Result<(), MoveError> {
        let (from, to) = self.trees;
        let mut at = within.start;
        while at < within.end {
            let data = from.next_data(&self.input, at..within.end);
            let data = data.map_err(MoveError::io("reading", &self.source))?;
            let data = data.unwrap_or(within.end..within.end);
            while let Some(old) = to
                .next_data(&self.part.file, at..data.start)
                .map_err(self.part.writing())?
            {
                let end = old.end.min(old.start + IO_BYTES);
                let zeros = vec![0; usize::try_from(end - old.start).expect("a few megabytes")];
                to.write_at(&self.part.file, old.start, &zeros)
                    .map_err(self.part.writing())?;
                at = end;
            }
            at = data.end;
        }
        Ok(())
    }

    /// The open files.
    pub(crate) fn open(&self) -> OpenCopy<'_, S, T> {
        OpenCopy {
            trees: self.trees,
            input: &self.input,
            output: &self.part.file,
            source: &self.source,
            part: &self.part.path,
            stripe: self.stripe,
        }
    }

    /// The source, before its first byte was read.
    pub fn copied(&self) -> &Stat {
        &self.before
    }

    /// The part.
    pub fn part(&self) -> &Path {
        &self.part.path
    }

    /// The stripes of the part.
    pub fn stripe(&self) -> StripeSize {
        self.stripe
    }

    /// The size, bytes.
    pub fn size(&self) -> u64 {
        self.before.size
    }

    /// Copies the data in a range, which no other thread may copy. Calls `tell` with each number of bytes copied, holes
    /// included; false from it stops the copy.
    pub fn copy(
        &self,
        within: Range<u64>,
        buffer: &mut Vec<u8>,
        tell: &dyn Fn(u64) -> bool,
    ) -> Result<(), MoveError> {
        let copy = self.open();
        let note_sum = |range, sum| {
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.push((range, sum));
        };
        copy.copy(within, buffer, &note_sum, tell)
    }

    /// Starts to write the part to storage, before [`FileCopy::make_ready`] waits for that.
    pub fn begin_sync(&self) {
        self.trees.1.begin_sync(&self.part.file);
    }

    /// Syncs the part, checks it, and gives it its attributes and its name. `verify`: by reading it
    /// back. Returns the number of extended attributes that the target's file system does not take.
    pub fn publish(self, verify: bool, buffer: &mut Vec<u8>) -> Result<u64, MoveError> {
        self.make_ready(verify, buffer)?.publish()
    }

    /// Syncs the part, checks it, and gives it its attributes: all but its name. `verify`: by reading it back.
    pub fn make_ready(
        mut self,
        verify: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<ReadyCopy<'t, T>, MoveError> {
        let (from, to) = self.trees;
        let xattrs_not_kept = keep_xattrs(from, to, &self.source, &self.part.path)?;
        let kept = KeptAttributes::from(&self.before);
        if self.end_of_data() < self.before.size {
            self.set_size()?;
        }
        let grouped = to.set_group(&self.part.file, kept.gid);
        grouped.map_err(self.part.writing())?;
        if kept.mode != self.mode {
            let set = to.set_mode(&self.part.file, kept.mode);
            set.map_err(self.part.writing())?;
        }
        to.set_times(&self.part.file, &kept)
            .map_err(self.part.writing())?;
        to.sync(&self.part.file).map_err(self.part.writing())?;
        if verify {
            let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            self.open().read_back(&sums, buffer)?;
            drop(sums);
        }
        self.check_source()?;
        let written = self.part.check_named(&self.target)?;
        if written.mode & 0o7777 != kept.mode {
            // A umask, a default ACL, or a write that cleared a set-id bit has changed the mode.
            let set = to.set_mode(&self.part.file, kept.mode);
            set.and_then(|()| to.sync(&self.part.file))
                .map_err(self.part.writing())?;
        }
        if written.size != self.before.size {
            return Err(MoveError::Different {
                path: self.part.path.clone(),
                range: written.size.min(self.before.size)..written.size.max(self.before.size),
            });
        }
        Ok(ReadyCopy {
            part: self.part,
            target: self.target,
            copied: self.before,
            replaced: self.replaced,
            written,
            kept_name: self.kept_name,
            xattrs_not_kept,
        })
    }

    /// Gives the part the size of the source.
    fn set_size(&self) -> Result<(), MoveError> {
        let set = self.trees.1.set_size(&self.part.file, self.before.size);
        set.map_err(self.part.writing())
    }

    /// The offset behind the last byte that this process has written.
    fn end_of_data(&self) -> u64 {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.iter().map(|(range, _)| range.end).max().unwrap_or(0)
    }

    /// Checks that the source has not changed since the copy began.
    fn check_source(&self) -> Result<(), MoveError> {
        let now = self.trees.0.stat(&self.input);
        let now = now.map_err(MoveError::io("reading", &self.source))?;
        match is_same(Some(&self.before), Some(&now)) {
            true => Ok(()),
            false => Err(MoveError::SourceChanged(self.source.clone())),
        }
    }
}

/// A part that this process has open and locked. Dropping this removes the part, unless it got the name of its target or is
/// resumed.
#[derive(Debug)]
struct OpenPart<'t, T: FileTree> {
    to: &'t T,
    path: PathBuf,
    file: T::File,
    is_removed: bool,
}

impl<T: FileTree> OpenPart<'_, T> {
    fn writing(&self) -> impl FnOnce(io::Error) -> MoveError {
        MoveError::io("writing", &self.path)
    }

    /// The attributes of the part. Fails if another mover has removed its name.
    fn check_named(&mut self, target: &Path) -> Result<Stat, MoveError> {
        let written = self.to.stat(&self.file);
        let written = written.map_err(self.writing())?;
        if written.nlink == 0 {
            self.is_removed = false; // another mover's part has this name now
            return Err(MoveError::Busy(target.to_owned()));
        }
        Ok(written)
    }
}

impl<T: FileTree> Drop for OpenPart<'_, T> {
    fn drop(&mut self) {
        if self.is_removed {
            // The next move to this name would remove it, too.
            let _ = self.to.remove(&self.path);
        }
    }
}

/// A copy that is whole and on storage, and only lacks its name. Unless it gets the name, its part is removed.
#[derive(Debug)]
pub struct ReadyCopy<'t, T: FileTree> {
    part: OpenPart<'t, T>,
    target: PathBuf,
    /// The source, before its first byte was read.
    copied: Stat,
    /// The node that had the target's name then.
    replaced: Option<Stat>,
    /// The part, when it was whole.
    written: Stat,
    /// A name that the part keeps.
    kept_name: Option<PathBuf>,
    xattrs_not_kept: u64,
}

impl<'t, T: FileTree> ReadyCopy<'t, T> {
    /// The source, before its first byte was read.
    pub fn copied(&self) -> &Stat {
        &self.copied
    }

    /// The number of extended attributes that the target's file system does not take.
    pub fn xattrs_not_kept(&self) -> u64 {
        self.xattrs_not_kept
    }

    /// Gives the copy its name. Returns the number of extended attributes that the target's file system does not take.
    pub fn publish(self) -> Result<u64, MoveError> {
        let lost = self.xattrs_not_kept;
        self.name()?.check()?;
        Ok(lost)
    }

    /// Gives the copy its name, unless somebody else has changed the node with this name since the copy began.
    pub fn name(mut self) -> Result<NamedCopy<'t, T>, MoveError> {
        let to = self.part.to;
        if let Some(kept) = self.kept_name.take() {
            self.part.path = part_of(&self.target);
            let linked = make_hard_link(to, &kept, &self.part.path, &|_| true)?;
            if linked == LinkOutcome::Refused {
                // Without a second name the part would be renamed, and the link that records its name would have to change
                // in the same step.
                return Err(MoveError::io("naming", &kept)(io_error(Errno::XDEV)));
            }
            self.part.is_removed = linked == LinkOutcome::Made;
        }
        let is_written = |found: &Stat| identity(found) == identity(&self.written);
        let replaced = self.replaced.as_ref();
        publish_name(to, &self.part.path, &self.target, replaced, is_written)?;
        self.part.is_removed = false;
        Ok(NamedCopy {
            part: self.part,
            target: self.target,
        })
    }
}

/// A copy that has its name.
#[derive(Debug)]
pub struct NamedCopy<'t, T: FileTree> {
    part: OpenPart<'t, T>,
    target: PathBuf,
}

impl<T: FileTree> NamedCopy<'_, T> {
    /// Checks that this copy has the name, and closes it. Another mover may have replaced the part just before it was
    /// renamed: then the other part has the target's name, and that mover, or the next move, finishes it. If the file
    /// cannot be examined, the check passes: the copy has its name.
    pub fn check(mut self) -> Result<(), MoveError> {
        match self.part.check_named(&self.target) {
            Err(busy @ MoveError::Busy(_)) => Err(busy),
            _ => Ok(()),
        }
    }
}

/// A source and a part that are open.
pub(crate) struct OpenCopy<'c, S: FileTree, T: FileTree> {
    pub trees: (&'c S, &'c T),
    pub input: &'c S::File,
    pub output: &'c T::File,
    pub source: &'c Path,
    pub part: &'c Path,
    pub stripe: StripeSize,
}

impl<S: FileTree, T: FileTree> OpenCopy<'_, S, T> {
    /// Copies the data in a range. `note_sum` gets the CRC32C of each range that is written; `tell` is as for
    /// [`FileCopy::copy`].
    pub fn copy(
        &self,
        within: Range<u64>,
        buffer: &mut Vec<u8>,
        note_sum: &dyn Fn(Range<u64>, u32),
        tell: &dyn Fn(u64) -> bool,
    ) -> Result<(), MoveError> {
        let (from, to) = self.trees;
        let reading = || MoveError::io("reading", self.source);
        let mut at = within.start;
        while at < within.end {
            let data = from.next_data(self.input, at..within.end);
            let data = data.map_err(reading())?;
            let data = data.unwrap_or(within.end..within.end);
            note(data.start - at, tell)?;
            at = data.start;
            while at < data.end {
                let end = self.stripe.end_of_write(at).min(data.end);
                let length = usize::try_from(end - at).expect("a few megabytes");
                buffer.resize(length.max(buffer.len()), 0);
                let bytes = &mut buffer[..length];
                if fill(from, self.input, at, bytes).map_err(reading())? < length {
                    return Err(MoveError::SourceChanged(self.source.to_owned()));
                }
                to.write_at(self.output, at, bytes)
                    .map_err(MoveError::io("writing", self.part))?;
                note_sum(at..end, crc32c::crc32c(bytes));
                note(end - at, tell)?;
                at = end;
            }
        }
        Ok(())
    }

    /// Compares the content of the part with the CRC32C of each range that was written.
    pub fn read_back(
        &self,
        sums: &[(Range<u64>, u32)],
        buffer: &mut Vec<u8>,
    ) -> Result<(), MoveError> {
        for (range, sum) in sums {
            let length = usize::try_from(range.end - range.start).expect("a few megabytes");
            buffer.resize(length.max(buffer.len()), 0);
            let bytes = &mut buffer[..length];
            let read = fill(self.trees.1, self.output, range.start, bytes);
            let read = read.map_err(MoveError::io("reading back", self.part))?;
            if read < length || crc32c::crc32c(bytes) != *sum {
                return Err(MoveError::Different {
                    path: self.part.to_owned(),
                    range: range.clone(),
                });
            }
        }
        Ok(())
    }
}

/// The stripes of a part that gets this many bytes. A small one needs none: one write fills it.
pub(crate) fn stripe_of<T: FileTree>(to: &T, part: &T::File, bytes: u64) -> StripeSize {
    match bytes > IO_BYTES {
        true => to.stripe_of(part),
        false => StripeSize::default(),
    }
}

fn open_source<S: FileTree>(from: &S, source: &Path) -> Result<(S::File, Stat), MoveError> {
    let opening = || MoveError::io("opening", source);
    let input = from.open(source).map_err(opening())?;
    let before = from.stat(&input).map_err(opening())?;
    match kind_of(&before) {
        NodeKind::File => Ok((input, before)),
        _ => Err(MoveError::SourceChanged(source.to_owned())),
    }
}

/// Reports bytes that were copied.
fn note(bytes: u64, tell: &dyn Fn(u64) -> bool) -> Result<(), MoveError> {
    match bytes == 0 || tell(bytes) {
        true => Ok(()),
        false => Err(MoveError::Stopped),
    }
}

/// Compares the bytes of two files of the same size.
pub fn compare<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    source: &Path,
    target: &Path,
    size: u64,
) -> Result<(), MoveError> {
    let opening = |path| MoveError::io("opening", path);
    let input = from.open(source).map_err(opening(source))?;
    let output = to.open(target).map_err(opening(target))?;
    let piece = usize::try_from(size.min(IO_BYTES)).expect("a few megabytes");
    let (mut one, mut other) = (vec![0; piece], vec![0; piece]);
    let mut at = 0;
    while at < size {
        let reading = |path| MoveError::io("reading", path);
        let read = fill(from, &input, at, &mut one).map_err(reading(source))?;
        let again = fill(to, &output, at, &mut other).map_err(reading(target))?;
        if read == 0 || read != again || one[..read] != other[..read] {
            return Err(MoveError::Different {
                path: target.to_owned(),
                range: at..(at + IO_BYTES).min(size),
            });
        }
        at += read as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn fill<T: FileTree>(
    tree: &T,
    file: &T::File,
    offset: u64,
    bytes: &mut [u8],
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match tree.read_at(file, offset + filled as u64, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Gives a target the extended attributes of its source. Returns the number of those that the target's file system does not
/// take.
pub(crate) fn keep_xattrs<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    source: &Path,
    target: &Path,
) -> Result<u64, MoveError> {
    let found = from.xattrs(source);
    let mut lost = 0;
    for (name, value) in found.map_err(MoveError::io("reading the attributes of", source))? {
        lost += u64::from(!set_xattr(to, target, &name, &value)?);
    }
    Ok(lost)
}

/// Sets an extended attribute; false: the target's file system does not take it.
fn set_xattr<T: FileTree>(
    to: &T,
    target: &Path,
    name: &OsStr,
    value: &[u8],
) -> Result<bool, MoveError> {
    match to.set_xattr(target, name, value) {
        Ok(()) => Ok(true),
        Err(error) if is_refused(&error) => Ok(false),
        Err(error) => Err(MoveError::io("setting attributes of", target)(error)),
    }
}

/// The names of extended attributes that users give.
const USER_PREFIX: &[u8] = b"user.";

/// Gives a file that was moved before the extended attributes that its source has now, and removes those that users have
/// removed from the source. Returns the number of those that the target's file system does not take.
pub(crate) fn match_xattrs<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    source: &Path,
    target: &Path,
) -> Result<u64, MoveError> {
    let wanted = from.xattrs(source);
    let wanted = wanted.map_err(MoveError::io("reading the attributes of", source))?;
    let there = to.xattrs(target);
    let there = there.map_err(MoveError::io("reading the attributes of", target))?;
    let is_wanted = |name: &OsStr| wanted.iter().any(|(wanted, _)| wanted == name);
    for (name, _) in &there {
        if name.as_bytes().starts_with(USER_PREFIX) && !is_wanted(name) {
            match to.remove_xattr(target, name) {
                Err(error) if !failed_with(&error, Errno::NODATA) => {
                    return Err(MoveError::io("removing attributes of", target)(error));
                }
                _ => {}
            }
        }
    }
    let mut lost = 0;
    for (name, value) in wanted.iter().filter(|wanted| !there.contains(wanted)) {
        lost += u64::from(!set_xattr(to, target, name, value)?);
    }
    Ok(lost)
}

/// True if a file system has no extended attributes, or no room for this one. ext4 keeps those of a file in one block; if
/// that is full, it fails with ENOSPC, as for a full disk.
fn is_refused(error: &io::Error) -> bool {
    const REFUSALS: [Errno; 6] = [
        Errno::NOTSUP,
        Errno::PERM,
        Errno::TOOBIG,
        Errno::RANGE,
        Errno::NOSPC,
        Errno::DQUOT,
    ];
    failed_with_any(error, &REFUSALS)
}

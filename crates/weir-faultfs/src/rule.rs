//! Faults: the requests that meet one, and its effect.

use std::path::{Path, PathBuf};
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use rustix::io::Errno;

/// A request of the kernel, by the system call that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FsOperation {
    /// Any call with a path: each of its names is looked up.
    LookUp,
    /// stat.
    GetAttributes,
    /// chmod.
    SetMode,
    /// chown.
    SetOwner,
    /// truncate.
    SetSize,
    /// utimensat.
    SetTimes,
    /// readlink.
    ReadLink,
    /// mkdir.
    MakeDirectory,
    /// unlink.
    Unlink,
    /// rmdir.
    RemoveDirectory,
    /// symlink.
    Symlink,
    /// rename, renameat2.
    Rename,
    /// link.
    Link,
    /// open of a file that is there.
    Open,
    /// open of a file that is made by it.
    Create,
    /// read.
    Read,
    /// write.
    Write,
    /// close of one descriptor.
    Flush,
    /// close of the last descriptor; the caller does not wait for it.
    Release,
    /// fsync, fdatasync.
    Sync,
    /// opendir.
    OpenDirectory,
    /// readdir.
    ReadDirectory,
    /// fsync of a directory.
    SyncDirectory,
    /// statfs.
    StatFs,
    /// setxattr.
    SetXattr,
    /// getxattr. The kernel asks for `security.capability` before the first write, too.
    GetXattr,
    /// listxattr.
    ListXattr,
    /// removexattr.
    RemoveXattr,
    /// fallocate.
    Allocate,
    /// lseek with SEEK_DATA or SEEK_HOLE.
    SeekData,
}

/// The effect of a fault on a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultEffect {
    /// It fails, and nothing is done.
    Fail(Errno),
    /// It is done, and the caller is told that it failed: as if the reply of a server was lost.
    FailDone(Errno),
    /// It waits until the rule is lifted, and is done then.
    Hang,
    /// It waits for this time.
    Delay(Duration),
}

/// A fault, and the requests that meet it.
#[derive(Clone, Debug)]
pub struct FaultRule {
    operations: Vec<FsOperation>,
    effect: FaultEffect,
    paths: Option<GlobMatcher>,
    after: u64,
    times: u64,
}

impl FaultRule {
    /// Returns true if requests of an operation may fail by it.
    pub fn hits(&self, operation: FsOperation) -> bool {
        self.operations.contains(&operation)
    }

    /// A fault of all requests of these operations.
    pub fn new(operations: &[FsOperation], effect: FaultEffect) -> FaultRule {
        FaultRule {
            operations: operations.to_owned(),
            effect,
            paths: None,
            after: 0,
            times: u64::MAX,
        }
    }

    /// Only of those whose path, below the mount, fits a pattern, in which `**/` stands for any
    /// directories. Of a rename either path may fit.
    #[must_use]
    pub fn at(self, pattern: &str) -> FaultRule {
        let mut glob = GlobBuilder::new(pattern);
        let glob = glob.literal_separator(true).build();
        FaultRule {
            paths: Some(glob.expect("a pattern of a test").compile_matcher()),
            ..self
        }
    }

    /// Only after this many of them.
    #[must_use]
    pub fn after(self, requests: u64) -> FaultRule {
        FaultRule {
            after: requests,
            ..self
        }
    }

    /// Only so many times.
    #[must_use]
    pub fn times(self, times: u64) -> FaultRule {
        FaultRule { times, ..self }
    }

    fn fits(&self, request: &RecordedRequest) -> bool {
        let is_chosen = |path: &Path| {
            let paths = self.paths.as_ref();
            paths.is_none_or(|paths| paths.is_match(path))
        };
        self.operations.contains(&request.operation)
            && (is_chosen(&request.path) || request.new_path.as_deref().is_some_and(is_chosen))
    }
}

/// The number of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleId(pub(crate) u64);

/// A rule in force.
#[derive(Debug)]
pub(crate) struct ActiveRule {
    pub id: RuleId,
    rule: FaultRule,
    /// Requests that fitted.
    fitted: u64,
    /// Requests that it had an effect on.
    done: u64,
}

impl ActiveRule {
    pub(crate) fn new(id: RuleId, rule: FaultRule) -> ActiveRule {
        ActiveRule {
            id,
            rule,
            fitted: 0,
            done: 0,
        }
    }

    /// Counts a request; returns the effect on it.
    pub(crate) fn meet(&mut self, request: &RecordedRequest) -> Option<FaultEffect> {
        if !self.rule.fits(request) {
            return None;
        }
        self.fitted += 1;
        if self.fitted <= self.rule.after || self.done >= self.rule.times {
            return None;
        }
        self.done += 1;
        Some(self.rule.effect)
    }
}

/// A request that came. Requests stand in the order in which they came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedRequest {
    /// The operation.
    pub operation: FsOperation,
    /// The path below the mount, when the request came.
    pub path: PathBuf,
    /// The new path of a rename or link.
    pub new_path: Option<PathBuf>,
    /// The first byte, of operations that have one; else 0.
    pub offset: u64,
    /// The bytes of a read, write or allocation; the new size of a file; else 0.
    pub bytes: u64,
    /// The reply; `None`: there is none yet.
    pub reply: Option<Result<(), Errno>>,
}

impl RecordedRequest {
    pub(crate) fn new(operation: FsOperation, path: PathBuf) -> RecordedRequest {
        RecordedRequest {
            operation,
            path,
            new_path: None,
            offset: 0,
            bytes: 0,
            reply: None,
        }
    }

    pub(crate) fn of_bytes(self, offset: u64, bytes: u64) -> RecordedRequest {
        RecordedRequest {
            offset,
            bytes,
            ..self
        }
    }

    pub(crate) fn to(self, new_path: PathBuf) -> RecordedRequest {
        RecordedRequest {
            new_path: Some(new_path),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: FsOperation, path: &str) -> RecordedRequest {
        RecordedRequest::new(operation, path.into())
    }

    #[test]
    fn a_rule_takes_what_it_names_after_some_and_so_many_times() {
        let fault = FaultEffect::Fail(Errno::IO);
        let rule = FaultRule::new(&[FsOperation::Write, FsOperation::Sync], fault);
        let rule = rule.at("**/*.part").after(1).times(2);
        let mut rule = ActiveRule::new(RuleId(0), rule);
        let mut met = |operation, path| rule.meet(&request(operation, path)).is_some();
        assert!(!met(FsOperation::Write, "a.part"), "the first");
        assert!(!met(FsOperation::Write, "d/a"), "another path");
        assert!(!met(FsOperation::Read, "a.part"), "another operation");
        assert!(met(FsOperation::Sync, "d/e/a.part"));
        assert!(met(FsOperation::Write, "a.part"));
        assert!(!met(FsOperation::Write, "a.part"), "the third");
    }

    #[test]
    fn of_a_rename_either_path_may_fit() {
        let rule = FaultRule::new(&[FsOperation::Rename], FaultEffect::Hang).at("new");
        let mut rule = ActiveRule::new(RuleId(0), rule);
        let rename = request(FsOperation::Rename, "old");
        assert_eq!(rule.meet(&rename), None);
        let rename = rename.to("new".into());
        assert_eq!(rule.meet(&rename), Some(FaultEffect::Hang));
    }
}

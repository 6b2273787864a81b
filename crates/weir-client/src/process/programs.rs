//! Files of weir's that become programs, or libraries that programs load.

use std::ffi::CString;

use super::descriptors::Descriptors;
use super::first_call::FirstCall;
use super::map::MappingCalls;
use super::open::OpenCalls;
use super::open_flags::O_CLOEXEC;
use super::paths::PathLookup;
use super::program_copies::program_path;
use super::{Outcome, ProcessState};
use crate::beneath::mount_of;
use crate::kernel::Fd;

/// The calls on files that become programs. They may touch the look-up of paths, the opening of files, their copies,
/// and descriptors.
#[derive(Debug)]
pub struct ProgramCalls {
    first_call: FirstCall,
    paths: PathLookup,
    opening: OpenCalls,
    mappings: MappingCalls,
    descriptors: Descriptors,
}

impl ProgramCalls {
    pub(super) const fn over(state: &'static ProcessState) -> ProgramCalls {
        ProgramCalls {
            first_call: FirstCall::over(state),
            paths: PathLookup::over(state),
            opening: OpenCalls::over(state),
            mappings: MappingCalls::over(state),
            descriptors: Descriptors::over(state),
        }
    }

    /// The path of an existing file of weir's in the kernel mount, if there is one. Links are
    /// followed here: the kernel may not know the tree by the prefix in their targets.
    pub fn path_beneath(&self, path: &[u8]) -> Option<CString> {
        let instance = self.first_call.instance()?;
        let mount = mount_of(&instance.run_dir)?;
        let mut real = [0; 4096];
        let length = self.paths.realpath(path, &mut real)?.ok()?;
        let below = instance.roots.main.strip(&real[..length])?;
        CString::new([&mount[..], below].concat()).ok()
    }

    /// A descriptor of the kernel with a copy of the file at a path, as by [`MappingCalls::materialize`].
    pub fn materialize_at(&self, dirfd: Fd, path: &[u8], _flags: i32) -> Outcome<Fd> {
        let fd = match self.opening.openat(dirfd, path, O_CLOEXEC, 0)? {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        if self.descriptors.handle(fd).is_none() {
            return Some(Ok(fd));
        }
        let copy = self.mappings.materialize(fd);
        let _ = self.descriptors.close(fd);
        copy
    }

    /// After exec: renames the program, which the kernel calls by the number of the descriptor that
    /// it was run from.
    pub fn rename_program(&self) {
        if let Some(path) = self.first_call.instance().and_then(program_path) {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if let Ok(name) = CString::new(name) {
                let _ = rustix::thread::set_name(&name);
            }
        }
    }
}

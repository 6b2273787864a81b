//! The variables of weir in the environment, also before libc has set that up.

use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};

use crate::kernel;
use crate::sys;

/// The environment variable that names the instance by its run directory.
pub const INSTANCE_VARIABLE: &str = "WEIR_INSTANCE";
/// The environment variable that holds the mount prefix, even after the run directory is gone.
pub const PREFIX_VARIABLE: &str = "WEIR_AT";
/// The environment variable by which a process that begins a program tells it that it inherits no
/// descriptor of weir's: the process's number.
pub const NOTHING_VARIABLE: &str = "WEIR_NOTHING_INHERITED";

/// The environment variable of the process of a mirror: it is no program that uses the instance by itself.
pub const MIRROR_VARIABLE: &str = "WEIR_MIRROR";

/// An environment variable, if it is not empty. Before libc has set up the environment, it is read
/// from the kernel's.
pub(super) fn variable(name: &str) -> Option<Vec<u8>> {
    let value = match sys::has_environment() {
        true => std::env::var_os(name)?.into_vec(),
        false => first_environment()?
            .split(|byte| *byte == 0)
            .find_map(|variable| {
                let value = variable.strip_prefix(name.as_bytes())?;
                value.strip_prefix(b"=").map(<[u8]>::to_vec)
            })?,
    };
    (!value.is_empty()).then_some(value)
}

/// The environment that this program was started with.
fn first_environment() -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/proc/self/environ", flags, Mode::empty()).ok()?;
    let fd = kernel::into_number(fd);
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    let read = loop {
        let read = kernel::borrow(fd).and_then(|file| rustix::io::read(file, &mut bytes));
        match read {
            Ok(0) => break Some(all),
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(_) => break None,
        }
    };
    let _ = kernel::close(fd);
    read
}

//! Checks of what the system is: kernel, C library, huge pages.
//!
//! A check collapses some shared memory to find out if it can become huge pages: the
//! kernel's version does not tell, since distributions build it differently and containers hide it.
//! `MADV_COLLAPSE` came with Linux 6.1 (madvise(2)).

use std::ffi::CStr;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use nix::sys::resource::{getrlimit, Resource};
use weir_config::{HugePages, KernelMount, Mount};

use super::finding::{Finding, MachineReport};
use crate::mount;

/// The oldest kernel that has statx and all else that the client relies on.
const OLDEST_KERNEL: (u32, u32) = (4, 18);
/// The oldest C library that the client is built for.
const OLDEST_GLIBC: (u32, u32) = (2, 28);
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// From `include/uapi/asm-generic/mman-common.h`; the libc crate has it for some targets only.
const MADV_COLLAPSE: libc::c_int = 25;

pub(super) fn check(examined: &MachineReport<'_>) -> Vec<Finding> {
    let config = &examined.loaded.config;
    let mut findings = vec![kernel(&kernel_release()), glibc(&glibc_version())];
    findings.extend(kernel_mount(&config.mount));
    if config.memory.huge_pages == HugePages::Auto {
        findings.push(huge_pages(&config.memory.directory));
    }
    findings
}

/// The leading `major.minor` of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn kernel_release() -> String {
    let uname = nix::sys::utsname::uname();
    uname.map_or_else(
        |_| String::new(),
        |u| u.release().to_string_lossy().into_owned(),
    )
}

fn kernel(release: &str) -> Finding {
    let check = "kernel";
    match version(release) {
        Some(found) if found < OLDEST_KERNEL => Finding::fail(
            check,
            format!("Linux {release}"),
            "weir needs Linux 4.18 or later",
        ),
        _ => Finding::ok(check, format!("Linux {release}")),
    }
}

/// Finds out if the kernel can mount instances, where the settings ask for that.
fn kernel_mount(settings: &Mount) -> Option<Finding> {
    let check = "kernel mount";
    if settings.kernel == KernelMount::Never {
        return None;
    }
    let Some(obstacle) = mount::obstacle() else {
        let prefix = settings.prefix.as_path();
        let place = match settings.kernel {
            KernelMount::At(ref dir) => format!("at {}", dir.display()),
            _ if prefix.is_dir() => format!("at {}, if it is empty", prefix.display()),
            _ => format!(
                "in the run directory; make {} for absolute paths of all programs",
                prefix.display()
            ),
        };
        return Some(Finding::ok(check, place));
    };
    let remedy = "static and setuid programs do not see weir, and files cannot be mapped shared; \
                  ask for the package fuse3, or see mount.namespace";
    Some(Finding::warn(check, obstacle, remedy))
}

fn glibc_version() -> String {
    // SAFETY: gnu_get_libc_version returns a static string ended by zero (gnu_get_libc_version(3)).
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    text.to_string_lossy().into_owned()
}

fn glibc(found: &str) -> Finding {
    let check = "C library";
    match version(found) {
        Some(version) if version < OLDEST_GLIBC => Finding::fail(
            check,
            format!("glibc {found}"),
            "weir needs glibc 2.28 or later",
        ),
        _ => Finding::ok(check, format!("glibc {found}")),
    }
}

fn huge_pages(directory: &Path) -> Finding {
    let check = "huge pages";
    let setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let mode = std::fs::read_to_string(setting).unwrap_or_default();
    let mode = mode.split(['[', ']']).nth(1).unwrap_or("not known");
    match collapse(directory) {
        Ok(()) => Finding::ok(check, format!("can be collapsed (shmem_enabled is {mode})")),
        Err(e) => {
            let found = format!("cannot be had: {e:#} (shmem_enabled is {mode})");
            let remedy = "large writes run at less than half the speed they could; Linux 6.1 or \
                          later can collapse shared memory, and as root: \
                          echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled helps";
            Finding::warn(check, found, remedy)
        }
    }
}

/// Collapses one huge page of a file in `directory`, which is then gone again.
fn collapse(directory: &Path) -> Result<()> {
    // Beyond the limit the kernel does not refuse: it kills (SIGXFSZ).
    let (most, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    ensure!(
        most >= HUGE_PAGE_BYTES as u64,
        "the file size limit is below a huge page"
    );
    // O_TMPFILE: the file never has a name that could be left behind.
    let mut options = File::options();
    options.read(true).write(true);
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_TMPFILE);
    let file = options
        .open(directory)
        .with_context(|| format!("a file in {}", directory.display()))?;
    file.set_len(HUGE_PAGE_BYTES as u64)?;

    // Twice the size, so that an aligned huge page lies within; the file is mapped there.
    let room = NonZeroUsize::new(2 * HUGE_PAGE_BYTES).expect("not zero");
    let one = NonZeroUsize::new(HUGE_PAGE_BYTES).expect("not zero");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing of ours.
    let base = unsafe { nix::sys::mman::mmap_anonymous(None, room, ProtFlags::PROT_NONE, flags) }?;
    let start = base.as_ptr() as usize;
    let aligned = NonZeroUsize::new(start.next_multiple_of(HUGE_PAGE_BYTES));
    // SAFETY: the range lies within the mapping just made, which nobody else knows of.
    let page = unsafe {
        mmap(
            aligned,
            one,
            access,
            MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
            &file,
            0,
        )
    }?;
    // SAFETY: `page` is a mapping of one huge page's length, writable, and of a file as long.
    let collapsed = unsafe {
        std::ptr::write_volatile(page.as_ptr().cast::<u8>(), 1);
        libc::madvise(page.as_ptr(), HUGE_PAGE_BYTES, MADV_COLLAPSE)
    };
    let error = std::io::Error::last_os_error();
    // SAFETY: the whole of the first mapping; nothing refers to it any more.
    unsafe { munmap(base, room.get()) }?;
    ensure!(collapsed == 0, "MADV_COLLAPSE: {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(kernel("6.18.44-fc").level, Level::Ok);
        assert_eq!(kernel("4.18.0-513.el8").level, Level::Ok);
        assert_eq!(kernel("3.10.0-1160.el7").level, Level::Fail);
        assert_eq!(kernel("4.4.0").level, Level::Fail);
        assert_eq!(glibc("2.36").level, Level::Ok);
        assert_eq!(glibc("2.17").level, Level::Fail);
        assert!(version(&glibc_version()).is_some());
        assert!(version(&kernel_release()).is_some());
    }

    #[test]
    fn the_trial_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let finding = huge_pages(dir.path());
        assert_eq!(finding.check, "huge pages");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

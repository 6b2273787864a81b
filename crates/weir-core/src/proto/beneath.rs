//! The protocol between the interposer and the kernel mount beneath it.
//!
//! An interposed program opens a file of the mount by its inode: it looks up, in the mount's root
//! directory, a name that contains the inode's number. No directory listing shows that name. It is
//! longer than any name that programs can give, so it conflicts with none.

use crate::names::NAME_MAX;
use crate::types::Ino;

/// A symbolic link in the run directory to the directory at which the kernel has mounted the
/// instance, if it has.
pub const MOUNT_LINK: &str = "mounted-at";
/// The directory in a run directory at which the kernel mounts the instance, where no other suits.
pub const OWN_DIR: &str = "mount";

/// A file in a run directory. Where it is not empty, mirrors lie over the elevated directories: in the mount namespace of a
/// command, in which another file lies over this one.
pub const MIRRORED_MARK: &str = "mirrored";

/// The ioctl(2) by which a program declares that an open file of the mount stands for one of its
/// open file descriptions: `_IOW('W', 1, u64)`. Its argument is the description's index, and in the
/// upper half the life of its entry. The mount lets the description's offset follow.
pub const SHARE_OFFSET: u32 = (1 << 30) | (8 << 16) | ((b'W' as u32) << 8) | 1;

/// A flag of open(2), O_NONBLOCK: a writable descriptor that has it serves shared mappings and writes to
/// mapped files. These go through the kernel's pages: a write that went around them would be
/// lost where another program stores in the same page meanwhile.
pub const SHARED: i32 = 0o4000;
/// Flags of open(2), O_DIRECT and O_NONBLOCK of x86-64 and aarch64 together: the descriptor is for
/// private mappings alone, whose pages need not follow writes of others.
pub const PRIVATE: i32 = DIRECT | 0o4000;
/// The same with O_DSYNC, which the mount itself uses: the kernel drops its pages of the file.
pub const DROP: i32 = PRIVATE | 0o10_000;
#[cfg(target_arch = "aarch64")]
const DIRECT: i32 = 0o200_000;
#[cfg(not(target_arch = "aarch64"))]
const DIRECT: i32 = 0o40_000;

const BEGIN: &str = ".weir-inode-";
/// The length of a name that contains an inode's number.
const LENGTH: usize = NAME_MAX + 17;

/// Returns the name by which the root directory of the mount has an inode.
pub fn name_of(ino: Ino) -> String {
    let digits = LENGTH - BEGIN.len();
    format!("{BEGIN}{:0digits$x}", ino.0)
}

/// Returns the inode whose number a name contains, if it is such a name.
pub fn inode_of(name: &[u8]) -> Option<Ino> {
    if name.len() != LENGTH {
        return None;
    }
    let digits = core::str::from_utf8(name).ok()?.strip_prefix(BEGIN)?;
    let number = digits.trim_start_matches('0');
    let plain = number.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then_some(Ino(u64::from_str_radix(number, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_the_inode_and_is_no_file_s() {
        for number in [1, 0x0003_0002_0000_0001, u64::MAX] {
            let name = name_of(Ino(number));
            assert!(name.len() > NAME_MAX);
            assert_eq!(inode_of(name.as_bytes()), Some(Ino(number)));
        }
        assert_eq!(inode_of(b".weir-inode-1"), None);
        assert_eq!(inode_of(&[b'x'; LENGTH]), None);
        assert_eq!(inode_of(name_of(Ino(1)).replace('1', "+").as_bytes()), None);
        assert_eq!(inode_of(name_of(Ino(0)).as_bytes()), None);
    }
}

//! The other names of a directory: paths by which other mounts of its file system show it, as those of mount --bind.
//!
//! By such a name programs would go past an elevated directory, to the parallel file system itself. Not found are directories
//! of which only a part is shown elsewhere, and those of file systems that are mounted twice, each time as a device of its own.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_fuse::unescaped;

/// A line of /proc/self/mountinfo: proc_pid_mountinfo(5).
#[derive(Clone, PartialEq, Eq, Debug)]
struct MountLine {
    /// Major and minor number.
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    at: PathBuf,
}

impl MountLine {
    fn parse(line: &str) -> Option<MountLine> {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.to_owned();
        let path = |field: &str| PathBuf::from(OsStr::from_bytes(&unescaped(field)));
        let (root, at) = (path(fields.next()?), path(fields.next()?));
        Some(MountLine { device, root, at })
    }
}

/// The other names of a directory, by its canonical path and metadata.
pub fn other_names(dir: &Path, found: &Metadata) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<MountLine> = text.lines().filter_map(MountLine::parse).collect();
    let mut names = names_by(&mounts, dir);
    // Something else may be mounted over it.
    names.retain(|name| {
        let there = fs::symlink_metadata(name);
        there.is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino()))
    });
    names
}

/// The paths by which mounts may show a directory, without its own.
fn names_by(mounts: &[MountLine], dir: &Path) -> Vec<PathBuf> {
    // The last one of a directory lies over the others.
    let above = mounts.iter().filter(|mount| dir.starts_with(&mount.at));
    let Some(own) = above.max_by_key(|mount| mount.at.components().count()) else {
        return Vec::new();
    };
    let Ok(below) = dir.strip_prefix(&own.at) else {
        return Vec::new();
    };
    let inside = own.root.join(below);
    let mut names = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.device == own.device) {
        let Ok(below) = inside.strip_prefix(&mount.root) else {
            continue;
        };
        let name: PathBuf = mount.at.join(below).components().collect();
        if name != dir && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_mounts_of_the_file_system_show_a_directory() {
        let lines = [
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
            "30 22 0:40 / /pfs rw shared:1 - lustre mgs:/fs rw",
            "31 22 0:40 /home /home rw - lustre mgs:/fs rw",
            "32 22 0:40 / /mnt/the\\040pfs rw - lustre mgs:/fs rw",
            "33 22 0:40 /home/u/run /run42 rw - lustre mgs:/fs rw",
            "34 22 0:40 /other /other rw - lustre mgs:/fs rw",
            "35 22 0:41 / /second rw - lustre mgs:/fs rw",
            "broken",
        ];
        let mounts: Vec<_> = lines
            .iter()
            .filter_map(|line| MountLine::parse(line))
            .collect();
        assert_eq!(mounts.len(), 7);
        let names = |dir: &str| names_by(&mounts, Path::new(dir));
        let expected = ["/home/u/run", "/mnt/the pfs/home/u/run", "/run42"];
        assert_eq!(names("/pfs/home/u/run"), expected.map(PathBuf::from));
        let expected = [
            "/pfs/home/u/run/sub",
            "/home/u/run/sub",
            "/mnt/the pfs/home/u/run/sub",
        ];
        assert_eq!(names("/run42/sub"), expected.map(PathBuf::from));
        assert_eq!(names("/other/x").len(), 2);
        assert_eq!(names("/var/x"), [""; 0].map(PathBuf::from));
        assert_eq!(names("/second/x"), [""; 0].map(PathBuf::from));
    }
}

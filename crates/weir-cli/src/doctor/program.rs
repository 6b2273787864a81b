//! Check of the program that is to be run: if the client can be put into it.

use std::path::Path;

use super::finding::Finding;
use crate::linked::{find_program, ProgramKind};

const CHECK: &str = "program";
const MOUNT: &str = "it sees weir through the kernel mount alone, elevated directories by a mirror: docs/GUIDE.md, \
                     \"Programs that need the kernel mount\"; connectors do nothing in it";
/// The kernel keeps such programs out of the mounts of users other than root (fuse(4)).
const OWN_MOUNT: &str =
    "it does not see weir, unless root has mounted the instance; connectors do nothing in it";

/// `program`: a path, or a name in `PATH`.
pub(super) fn check(program: &Path) -> Finding {
    let named = program.display();
    let Some(path) = find_program(program) else {
        let remedy = "give the path of a program, or a name in PATH";
        return Finding::fail(CHECK, format!("{named} is not found"), remedy);
    };
    let kind = match ProgramKind::read(&path) {
        Ok(kind) => kind,
        Err(error) => {
            let remedy = "programs are started whose file can be read";
            return Finding::warn(CHECK, format!("{}: {error}", path.display()), remedy);
        }
    };
    let path = path.display();
    if let Some(obstacle) = kind.obstacle() {
        let remedy = match kind {
            ProgramKind::Privileged => OWN_MOUNT,
            _ => MOUNT,
        };
        return Finding::warn(CHECK, format!("{path} {obstacle}"), remedy);
    }
    let ProgramKind::Script(interpreter) = kind else {
        return Finding::ok(CHECK, format!("{path} gets the client"));
    };
    let found = format!("{path} is a script for {}", interpreter.display());
    match ProgramKind::read(&interpreter) {
        Ok(kind) => {
            let Some(obstacle) = kind.obstacle() else {
                let rest = "which gets the client, and so do the dynamic programs that it starts";
                return Finding::ok(CHECK, format!("{found}, {rest}"));
            };
            Finding::warn(CHECK, format!("{found}, which {obstacle}"), MOUNT)
        }
        Err(error) => {
            let remedy = "its first line must name a program";
            Finding::fail(CHECK, format!("{found}: {error}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn a_program_that_does_not_get_the_client_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let level = |path: &Path, words: &str| {
            let finding = check(path);
            assert!(finding.found.contains(words), "{}", finding.found);
            finding.level
        };
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(level(Path::new("sh"), "gets the client"), Level::Ok);
        assert_eq!(
            level(Path::new("no-such-program"), "not found"),
            Level::Fail
        );
        let script = write("script", b"#! /bin/sh -e\ntouch ran\n");
        assert_eq!(
            level(&script, "is a script for /bin/sh, which gets"),
            Level::Ok
        );
        let lost = write("lost", b"#!/no/such/shell\n");
        assert_eq!(level(&lost, "a script for /no/such/shell"), Level::Fail);
        assert_eq!(level(&write("data", b"\x7fELF"), "no 64-bit"), Level::Warn);
        assert_eq!(level(&write("empty", b""), "no 64-bit"), Level::Warn);

        let mut elf = std::fs::read(&sh).unwrap();
        // Program headers: without the loader among them the program is linked statically (elf(5)).
        let word = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
        let (size, count) = (word(0x36), word(0x38));
        let first = usize::from(elf[0x20]);
        let loader = (0..count).map(|number| first + number * size);
        let loader = loader.into_iter().find(|at| elf[*at] == 3).unwrap();
        elf[loader] = 0;
        assert_eq!(level(&write("static", &elf), "statically"), Level::Warn);
        elf[loader] = 3;
        let other = write("privileged", &elf);
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&other, mode(0o4755)).unwrap();
        assert_eq!(level(&other, "gets the client"), Level::Ok);
        elf[0x12] ^= 1;
        assert_eq!(level(&write("foreign", &elf), "no 64-bit"), Level::Warn);
    }
}

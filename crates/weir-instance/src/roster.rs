//! The files `roster.json` and `secret` of a run directory: who is in an instance of several
//! servers, and what they prove to know. Both are of mode 0600 in a directory of mode 0700.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use weir_core::roster::{Roster, Secret};

/// The file of the roster; only instances of several servers have one.
pub const ROSTER: &str = "roster.json";
const SECRET: &str = "secret";

/// The longest file that is read, bytes: that of the most members is shorter.
const FILE_MOST: u64 = 8 << 20;

/// Writes the roster, which is JSON already, so that it is whole from the moment it is there.
pub fn write(run_dir: &Path, json: &str) -> Result<()> {
    let beside = run_dir.join(".roster.json");
    write_private(&beside, json)?;
    std::fs::rename(&beside, run_dir.join(ROSTER)).context(ROSTER)
}

/// Reads and checks the roster; `None` if the instance is of one server.
pub fn read(run_dir: &Path) -> Result<Option<Roster>> {
    let path = run_dir.join(ROSTER);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    let mut text = String::new();
    let length = file.take(FILE_MOST + 1).read_to_string(&mut text)?;
    ensure!(length as u64 <= FILE_MOST, "{} is too long", path.display());
    let roster = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(Some(roster))
}

/// Writes the secret.
pub fn write_secret(run_dir: &Path, secret: &Secret) -> Result<()> {
    write_private(&run_dir.join(SECRET), &String::from(secret.clone()))
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let written = file
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_core::roster::{InstanceId, Member};
    use weir_core::types::Rank;

    #[test]
    fn a_roster_reads_back_and_a_bad_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let member = Member {
            rank: Rank(0),
            host: "a".into(),
            address: "10.0.0.1:4000".parse().unwrap(),
            endpoint: None,
            is_mover: false,
        };
        let roster = Roster::new(InstanceId([1; 16]), vec![member]).unwrap();
        write(dir.path(), &serde_json::to_string(&roster).unwrap()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(roster));
        let mode = dir
            .path()
            .join(ROSTER)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        for bad in ["", "{}", "{\"instance\":\"00\",\"members\":[]}"] {
            write(dir.path(), bad).unwrap();
            assert!(read(dir.path()).is_err(), "{bad}");
        }
    }
}

//! Commands of weir on the node of the mount, with a small instance, and trees that are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub use weir_cluster::guard::wait_until;
use weir_tests::launch::weir_binary;

use super::volume::{GlusterFs, Layout};

/// A mounted volume, and directories beside it: `talk`, by which a test and a program talk, and `plain`, an
/// ordinary directory that has what the mount is to have.
pub struct Room {
    pub gluster: GlusterFs,
}

/// A command that runs beside the test, and does not outlive it.
pub struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // nsenter, and the command with it; what that has started ends with the node.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn output(mut self) -> Output {
        wait_until("the end of weir run", || self.has_ended());
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

/// Runs a command to its end, which must be a good one; returns its output.
#[track_caller]
pub fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        output_text(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The output of a command, for the message of a test that fails.
pub fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

/// Of a script: waits for a file of the test.
pub const AWAIT: &str = "await() { until [ -e \"$1\" ]; do sleep 0.05; done; }\n";

impl Room {
    pub fn new(what: &str, layout: Layout) -> Option<Room> {
        let gluster = GlusterFs::up(what, layout)?;
        let room = Room { gluster };
        for name in ["talk", "plain"] {
            fs::create_dir(room.beside(name)).unwrap();
        }
        Some(room)
    }

    /// A path beside the mount, on the node's own disk.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.gluster.client().storage().join(name)
    }

    /// A path of the mount, as programs see it.
    pub fn target(&self, name: &str) -> PathBuf {
        self.gluster.path().join(name)
    }

    /// A command of weir with a small instance.
    pub fn weir(&self, words: &[&str]) -> Command {
        let mut command = self.gluster.client().command(weir_binary().unwrap());
        command
            .args(words)
            .env_remove("WEIR_INSTANCE")
            .env("WEIR_MEMORY_BUDGET", "64M")
            .env("WEIR_FILE_BUDGET", "64M")
            .env("WEIR_MEMORY_WARM", "0")
            .env("WEIR_DRAIN_INTERVAL_S", "0")
            .stdin(Stdio::null());
        command
    }

    /// Starts `weir run` with a script. Its arguments are `dir`, the directory for talk, and the weir command.
    pub fn start(&self, options: &[&str], dir: &Path, script: &str) -> Running {
        let mut command = self.weir(&["run"]);
        command
            .args(options)
            .args(["--", "sh", "-ec", &format!("{AWAIT}{script}"), "sh"])
            .arg(dir)
            .arg(self.beside("talk"))
            .arg(weir_binary().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// The same, to its end, which must be a good one; returns what it said.
    #[track_caller]
    pub fn run(&self, options: &[&str], dir: &Path, script: &str) -> String {
        let output = self.start(options, dir, script).output();
        assert!(output.status.success(), "{}", output_text(&output));
        output_text(&output)
    }

    /// Runs the same script without weir; its last argument is a command that does nothing.
    #[track_caller]
    pub fn run_plain(&self, dir: &Path, script: &str) {
        let mut command = self.gluster.client().command("sh");
        command
            .args(["-ec", &format!("{AWAIT}{script}"), "sh"])
            .arg(dir)
            .arg(self.beside("talk"))
            .arg("true");
        said(&mut command);
    }

    pub fn say(&self, name: &str) {
        fs::write(self.beside("talk").join(name), b"").unwrap();
    }

    /// The content of a file that the script has written for the test.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.beside("talk").join(name)).unwrap_or_default()
    }

    /// Waits until the script has made a file.
    #[track_caller]
    pub fn wait_for(&self, name: &str, run: &mut Running) {
        let path = self.beside("talk").join(name);
        wait_until(name, || path.exists() || run.has_ended());
        if !path.exists() {
            let output = run.0.take().unwrap().wait_with_output().unwrap();
            panic!("it ended before {name}: {}", output_text(&output));
        }
    }

    /// All that is in a directory of the node: names, kinds, modes, numbers of links, sizes, times, targets of
    /// links, contents, extended attributes.
    #[track_caller]
    pub fn listing(&self, dir: &Path) -> String {
        let script = "
            cd $1
            find . ! -type d -printf '%P %y %m %n %s %l\\n' -o -printf '%P/ %m\\n' | sort
            find . -type f -print0 | sort -z | xargs -0 -r sha256sum
            find . ! -type d -newermt 2001-01-01 ! -newermt 2001-01-03 | sort
            getfattr -R -d -m '^user[.]' .";
        let mut shell = self.gluster.client().command("bash");
        said(shell.args(["-ec", script, "bash"]).arg(dir))
    }

    /// Checks that a directory of the mount is the same as one beside it.
    #[track_caller]
    pub fn assert_same(&self, moved: &str, plain: &str) {
        let (moved, plain) = (self.target(moved), self.beside(plain));
        let (moved, plain) = (self.listing(&moved), self.listing(&plain));
        let differ: Vec<&str> = moved
            .lines()
            .filter(|line| !plain.lines().any(|other| other == *line))
            .collect();
        let lost: Vec<&str> = plain
            .lines()
            .filter(|line| !moved.lines().any(|other| other == *line))
            .collect();
        assert!(
            moved == plain,
            "only moved: {differ:#?}\nonly plain: {lost:#?}"
        );
    }
}

//! Kernel mounts: where they come up, what `weir mount` refuses, and that nothing of one stays, however the
//! instance ends. Skipped, with a line that says so, where the machine allows none.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{first_line, pid_of, wait_until, Done, Room};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// A room whose instances may be mounted; `None`: this machine mounts nothing.
fn room() -> Option<Room> {
    let device = fs::File::options().read(true).write(true).open("/dev/fuse");
    match device {
        Ok(_) if nix::unistd::geteuid().is_root() => Some(Room::new()),
        Ok(_) => {
            weir_cluster::skip("kernel mounts", "root's rights");
            None
        }
        Err(error) => {
            weir_cluster::skip_for_kernel("kernel mounts", &format!("/dev/fuse: {error}"));
            None
        }
    }
}

/// Directories below the room at which something is mounted.
fn mounted(room: &Room) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let here = room.path().to_str().unwrap();
    at.filter(|at| at.starts_with(here))
        .map(str::to_owned)
        .collect()
}

/// Processes of mounts of the room's instances, zombies aside.
fn mount_processes(room: &Room) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("mount-process") && line.contains(room.path().to_str().unwrap()) {
            found.push(Pid::from_raw(pid));
        }
    }
    found
}

#[track_caller]
fn nothing_stays(room: &Room) {
    wait_until("nothing is mounted", || mounted(room).is_empty());
    wait_until("no process of a mount is left", || {
        mount_processes(room).is_empty()
    });
}

/// Starts the instance `x`; where the kernel has it.
fn start(room: &Room, options: &[&str]) -> PathBuf {
    room.ok(&[&["start", "x"], options].concat());
    mount_of(room)
}

fn mount_of(room: &Room) -> PathBuf {
    let mounts = mounted(room);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    PathBuf::from(&mounts[0])
}

fn directory(room: &Room, name: &str) -> PathBuf {
    let dir = room.path().join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

#[test]
fn a_mount_by_hand_refuses_what_would_hide_something() {
    let Some(room) = room() else { return };
    let dir = directory(&room, "at");
    let at = dir.to_str().unwrap();
    let refused = |wanted: &str, arguments: &[&str]| {
        let done: Done = room.run(&[&["mount"], arguments].concat());
        assert_ne!(done.code, Some(0), "{arguments:?}: {done:?}");
        assert!(done.err.contains(wanted), "{arguments:?}: {done:?}");
    };
    refused("", &["-i", "x", at]); // no such instance
    assert!(mounted(&room).is_empty());
    let own = start(&room, &[]);
    fs::write(own.join("f"), "text").unwrap();
    refused(
        "not a directory",
        &["-i", "x", room.write("file", "").to_str().unwrap()],
    );
    refused("No such file", &["-i", "x", "/no/such/directory"]);
    let full = directory(&room, "full");
    fs::write(full.join("f"), "").unwrap();
    refused("not empty", &["-i", "x", full.to_str().unwrap()]);
    room.ok(&["mount", "-i", "x", at]);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "text");
    refused("already", &["-i", "x", at]);
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    assert!(dir.is_dir() && full.join("f").exists());
}

#[test]
fn mount_kernel_says_where() {
    let Some(room) = room() else { return };
    room.ok(&["start", "x", "--set", "mount.kernel=never"]);
    assert!(mounted(&room).is_empty());
    room.ok(&["stop", "x"]);

    let at = directory(&room, "at");
    let set = format!("mount.kernel={}", at.display());
    assert_eq!(start(&room, &["--set", &set]), at);
    room.ok(&["stop", "x"]);
    nothing_stays(&room);

    // At the prefix, when it is an empty directory; beside it, when it is not.
    let prefix = directory(&room, "prefix");
    let option = ["--mount", prefix.to_str().unwrap()];
    assert_eq!(start(&room, &option), prefix);
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    fs::write(prefix.join("own"), "kept").unwrap();
    assert_ne!(start(&room, &option), prefix);
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    assert_eq!(fs::read_to_string(prefix.join("own")).unwrap(), "kept");

    // One that cannot be fails the start.
    let set = format!("mount.kernel={}", prefix.display());
    let done = room.run(&["start", "x", "--set", &set]);
    assert_ne!(done.code, Some(0), "{done:?}");
    nothing_stays(&room);
    wait_until("nothing is left", || room.left_behind().is_empty());
}

#[test]
fn a_stop_takes_the_mount_off_while_it_is_used() {
    let Some(room) = room() else { return };
    let at = start(&room, &[]);
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", "exec 3> open; echo ready; read line; echo more >&3"]);
    shell
        .current_dir(&at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    first_line(&mut shell);
    room.ok(&["stop", "--force", "x"]);
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
    drop(shell.stdin.take());
    // Its write fails; it does not hang.
    shell.wait().unwrap();
}

#[test]
fn the_end_of_a_run_takes_the_mount_off() {
    let Some(room) = room() else { return };
    for servers in ["1", "3"] {
        let script = "grep -c weir-0/run /proc/self/mountinfo; exit 7";
        let options = ["run", "--servers", servers, "sh", "-c", script];
        room.ends(7, &options);
        nothing_stays(&room);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn a_killed_mount_comes_back_with_the_data() {
    let Some(room) = room() else { return };
    let at = start(&room, &[]);
    fs::write(at.join("f"), "before").unwrap();
    let file = fs::File::open(at.join("f")).unwrap();
    for _ in 0..3 {
        let killed = mount_processes(&room);
        assert_eq!(killed.len(), 1);
        kill(killed[0], Signal::SIGKILL).unwrap();
        wait_until("another process serves", || {
            let now = mount_processes(&room);
            now.len() == 1 && now != killed && fs::read(at.join("f")).is_ok_and(|f| f == b"before")
        });
        assert_eq!(mount_of(&room), at);
    }
    assert!(std::io::read_to_string(&file).is_err(), "of the killed one");
    fs::write(at.join("f"), "behind").unwrap();
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "behind");
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_killed_server_takes_its_mount_along_and_the_next_has_the_data() {
    let Some(room) = room() else { return };
    for both in [false, true] {
        let at = start(&room, &[]);
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("d/f"), "kept").unwrap();
        let mounts = mount_processes(&room);
        kill(room.server("x"), Signal::SIGKILL).unwrap();
        if both {
            for pid in mounts {
                // It may have ended by itself.
                let _ = kill(pid, Signal::SIGKILL);
            }
        } else {
            nothing_stays(&room);
        }
        wait_until("it is dead", || room.is_dead("x"));
        room.ok(&["start", "x"]);
        let at = mount_of(&room);
        assert_eq!(fs::read_to_string(at.join("d/f")).unwrap(), "kept");
        room.ok(&["stop", "x"]);
        nothing_stays(&room);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn a_stop_after_both_were_killed_clears_all_but_no_file_of_others() {
    let Some(room) = room() else { return };
    let by_hand = directory(&room, "by-hand");
    let at = start(&room, &[]);
    fs::write(at.join("f"), "x").unwrap();
    room.ok(&["mount", "-i", "x", by_hand.to_str().unwrap()]);
    let mounts = mount_processes(&room);
    assert_eq!(mounts.len(), 2);
    kill(room.server("x"), Signal::SIGKILL).unwrap();
    for pid in mounts {
        let _ = kill(pid, Signal::SIGKILL);
    }
    // A signal takes its time: until then there is a server to ask.
    wait_until("it is dead", || room.is_dead("x"));
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
    assert!(!mounted(&room).iter().any(|at| Path::new(at) != by_hand));
    // A mount by hand whose process was killed is taken off by hand.
    let _ = nix::mount::umount2(&by_hand, nix::mount::MntFlags::MNT_DETACH);
    nothing_stays(&room);
    assert!(by_hand.is_dir());
}

/// A command that has no client in it.
const WITHOUT_CLIENT: [&str; 5] = [
    "env",
    "LD_PRELOAD=",
    "WEIR_INSTANCE=",
    "WEIR_AT=",
    "HDF5_VOL_CONNECTOR=",
];

#[test]
fn an_elevated_directory_is_mounted_by_hand() {
    let Some(room) = room() else { return };
    let (pfs, at) = (directory(&room, "pfs"), directory(&room, "at"));
    fs::write(pfs.join("old"), "of the PFS").unwrap();
    let elevated = pfs.to_str().unwrap();
    room.ok(&["start", "x", "--elevate", elevated]);
    let at_path = at.to_str().unwrap();
    let mount = |elevated: &str| room.run(&["mount", "-i", "x", "--elevated", elevated, at_path]);
    let other = mount(room.path().to_str().unwrap());
    assert!(
        other.err.contains("is not elevated; these are: "),
        "{other:?}"
    );
    assert_eq!(mount(elevated).code, Some(0));
    assert_eq!(fs::read_to_string(at.join("old")).unwrap(), "of the PFS");
    fs::write(at.join("new"), "by the kernel").unwrap();
    fs::remove_file(at.join("old")).unwrap();
    fs::create_dir(at.join("d")).unwrap();
    let new = pfs.join("new");
    let seen = room.ok(&["run", "-i", "x", "cat", new.to_str().unwrap()]);
    assert_eq!(seen, "by the kernel");
    let inside = room.run(&[
        "mount",
        "-i",
        "x",
        "--elevated",
        elevated,
        pfs.join("d").to_str().unwrap(),
    ]);
    assert!(
        inside.err.contains("take a directory elsewhere"),
        "{inside:?}"
    );
    let again = mount(elevated);
    assert!(again.err.contains("already"), "{again:?}");
    let within = room.run(&["run", "--elevate", at_path, "true"]);
    assert!(within.err.contains("a mount of weir"), "{within:?}");
    // It is no use of the instance, and what was written by it is moved.
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    assert_eq!(fs::read_to_string(&new).unwrap(), "by the kernel");
    assert!(!pfs.join("old").exists() && pfs.join("d").is_dir());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_command_without_the_client_finds_elevated_directories() {
    let Some(room) = room() else { return };
    let pfs = directory(&room, "pfs");
    let elevated = pfs.to_str().unwrap();
    let script = "cd pfs && cat old && echo new > new && mv new old && mkdir d && ls; \
                  readlink /proc/self/cwd; grep -c ' '$PWD' .* fuse' /proc/self/mountinfo";
    for servers in ["1", "3"] {
        fs::write(pfs.join("old"), "old\n").unwrap();
        let run = ["run", "--servers", servers, "--elevate", elevated];
        let always = ["--set", "run.mirror=always"];
        let command = [&WITHOUT_CLIENT[..], &["sh", "-c", script]].concat();
        let done = room.run(&[&run[..], &always, &command].concat()).ended(0);
        assert_eq!(
            done.out,
            format!("old\nd\nold\n{elevated}\n1\n"),
            "{done:?}"
        );
        assert_eq!(fs::read_to_string(pfs.join("old")).unwrap(), "new\n");
        fs::remove_dir(pfs.join("d")).unwrap();
        // Programs that have the client find the same there.
        let done = room.run(&[&run[..], &always, &["sh", "-c", script]].concat());
        let done = done.ended(0);
        assert!(done.out.starts_with("new\nd\nold\n"), "{done:?}");
        fs::remove_dir(pfs.join("d")).unwrap();
        nothing_stays(&room);
        assert_eq!(room.left_behind(), [""; 0]);
    }
    // Without a mirror such a program finds the PFS.
    let command = [&WITHOUT_CLIENT[..], &["sh", "-c", script]].concat();
    let never = ["run", "--elevate", elevated, "--set", "run.mirror=never"];
    let done = room.run(&[&never[..], &command].concat()).ended(1);
    assert!(done.out.ends_with("\n0\n"), "{done:?}");
}

/// Files are moved by processes that see the PFS itself: a run within the command of another one moves nothing.
#[test]
fn a_run_within_the_command_of_another_one_uses_its_mirrors() {
    let Some(room) = room() else { return };
    let pfs = directory(&room, "pfs");
    let script = "echo 1 > pfs/one; \"$0\" run sh -c 'cat pfs/one; echo 2 > pfs/two; mv pfs/one pfs/three'; \
                  \"$0\" run env LD_PRELOAD= WEIR_INSTANCE= cat pfs/two pfs/three; \
                  \"$0\" stop --force \"$WEIR_INSTANCE\"; echo $?; \
                  for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p; done 2> /dev/null | grep -c \"drain-process.*$WEIR_INSTANCE\"";
    let always = [
        "run",
        "--elevate",
        pfs.to_str().unwrap(),
        "--set",
        "run.mirror=always",
    ];
    let command = ["sh", "-c", script, env!("CARGO_BIN_EXE_weir")];
    let done = room.run(&[&always[..], &command].concat()).ended(0);
    assert_eq!(done.out, "1\n2\n1\n2\n1\n", "{done:?}");
    assert!(
        done.err
            .contains("here mirrors lie over elevated directories"),
        "{done:?}"
    );
    for (name, content) in [("two", "2\n"), ("three", "1\n")] {
        assert_eq!(fs::read_to_string(pfs.join(name)).unwrap(), content);
    }
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
}

/// Locks of one program on several open files, and of programs that have ended.
#[test]
fn locks_of_a_mirror_are_those_of_their_owners() {
    let Some(room) = room() else { return };
    let python = std::process::Command::new("python3")
        .arg("--version")
        .output();
    if python.is_err() {
        weir_cluster::skip("locks of mirrors", "python3");
        return;
    }
    let pfs = directory(&room, "pfs");
    fs::write(pfs.join("old"), "of the PFS").unwrap();
    fs::write(room.path().join("locks.py"), LOCKS).unwrap();
    let always = [
        "run",
        "--elevate",
        pfs.to_str().unwrap(),
        "--set",
        "run.mirror=always",
    ];
    for name in ["pfs/old", "pfs/new"] {
        let command = [&WITHOUT_CLIENT[..], &["python3", "locks.py", name]].concat();
        let done = room.run(&[&always[..], &command].concat()).ended(0);
        assert_eq!(done.out, "as on a local file system\n", "{name}: {done:?}");
    }
}

const LOCKS: &str = r#"
import fcntl, os, struct, subprocess, sys
path = sys.argv[1]
def lock(fd, command, kind, start=0, length=0):
    fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
def other(kind, start=0, length=0, command="fcntl.F_OFD_SETLK"):
    said = subprocess.run([sys.executable, "-c", f"""
import fcntl, os, struct
fd = os.open({path!r}, os.O_RDWR)
try:
    fcntl.fcntl(fd, {command}, struct.pack("hhqqi4x", {kind}, 0, {start}, {length}, 0))
    print("free")
except BlockingIOError:
    print("taken")
"""], capture_output=True, text=True)
    return said.stdout.strip() or said.stderr
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
os.close(os.open(path, os.O_CREAT | os.O_RDWR))
reading, writing = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
lock(reading, fcntl.F_SETLK, R, 0, 10)
assert (other(R, 0, 10), other(W, 0, 10)) == ("free", "taken")
lock(writing, fcntl.F_SETLK, W, 0, 5)          # an upgrade by another descriptor
assert (other(R, 0, 5), other(R, 5, 5), other(W, 5, 5)) == ("taken", "free", "taken")
whole = fcntl.fcntl(reading, fcntl.F_GETLK, struct.pack("hhqqi4x", W, 0, 0, 0, 0))
assert struct.unpack("hhqqi4x", whole)[0] == U  # nobody else's
lock(writing, fcntl.F_SETLK, U, 0, 0)
assert other(W) == "free"
lock(reading, fcntl.F_SETLK, R, 0, 10)
reader = subprocess.Popen([sys.executable, "-c", f"""
import fcntl, os, struct
fd = os.open({path!r}, os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", {R}, 0, 0, 10, 0))
print(flush=True)
input()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
reader.stdout.readline()
try:
    lock(writing, fcntl.F_SETLK, W, 0, 10)
    raise AssertionError("two processes may write")
except BlockingIOError:
    pass
reader.communicate(b"\n")
assert other(W, 0, 10) == "taken"              # what it had is still there
lock(writing, fcntl.F_SETLK, U, 0, 0)
lock(writing, fcntl.F_SETLK, W)                # the whole file, and then a part less
lock(writing, fcntl.F_SETLK, U, 0, 100)
assert (other(W, 0, 100), other(W, 100, 1)) == ("free", "taken")
os.close(reading)                              # which ends all locks of the process
assert other(W) == "free"
held = os.open(path, os.O_RDWR)
lock(held, fcntl.F_OFD_SETLK, W, 0, 10)
assert other(W, 0, 10) == "taken"
os.close(os.dup(held))
assert other(W, 0, 10) == "taken"
os.close(held)                                 # the last descriptor of the description
for _ in range(1000):
    if other(W, 0, 10) == "free":
        break
else:
    raise AssertionError("a lock has outlived its description")
os.chmod(path, 0o600)
fd = os.open(path, os.O_RDWR)
os.unlink(path)
open(path, "w").close()
os.fchmod(fd, 0o640)                           # of the removed file, not of the one that has its name
assert os.stat(path).st_mode & 0o777 != 0o640 and os.fstat(fd).st_mode & 0o777 == 0o640
assert os.read(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 9) == os.pread(fd, 9, 0)
print("as on a local file system")
"#;

#[test]
fn what_a_killed_mirror_was_told_is_safe() {
    let Some(room) = room() else { return };
    let pfs = directory(&room, "pfs");
    let elevated = pfs.to_str().unwrap();
    let script = "echo kept > pfs/kept; exec 3> pfs/open; echo open >&3; echo ready; read line; \
                  echo lost >&3 || exit 7";
    let always = ["run", "--elevate", elevated, "--set", "run.mirror=always"];
    let command = [&WITHOUT_CLIENT[..], &["sh", "-c", script]].concat();
    for kills_run in [false, true] {
        let mut run = room.weir(&[&always[..], &command].concat());
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        first_line(&mut run);
        // At the end of its input the command would write on.
        let input = run.stdin.take();
        if kills_run {
            run.kill().unwrap();
            run.wait().unwrap();
            wait_until("the instance is dead", || mount_processes(&room).is_empty());
            let recovered = room.ok(&["recover", "--list"]);
            assert!(recovered.contains("run-"), "{recovered}");
            let name = recovered
                .split_whitespace()
                .find(|word| word.starts_with("run-"));
            room.ok(&["recover", name.unwrap().trim_end_matches(':')]);
        } else {
            kill(mirrors(&room)[0], Signal::SIGKILL).unwrap();
            drop(input);
            assert_eq!(run.wait().unwrap().code(), Some(7));
        }
        nothing_stays(&room);
        for (name, content) in [("kept", "kept\n"), ("open", "open\n")] {
            assert_eq!(fs::read_to_string(pfs.join(name)).unwrap(), content);
            fs::remove_file(pfs.join(name)).unwrap();
        }
    }
}

/// The processes of mirrors among those of mounts.
fn mirrors(room: &Room) -> Vec<Pid> {
    let mut mirrors = mount_processes(room);
    mirrors.retain(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--elevated")
    });
    mirrors
}

#[test]
fn mirrors_end_with_the_run_of_their_command() {
    let Some(room) = room() else { return };
    let pfs = directory(&room, "pfs");
    room.ok(&["start", "x", "--elevate", pfs.to_str().unwrap()]);
    let run = ["run", "-i", "x", "--set", "run.mirror=always", "sh", "-c"];
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut run =
            room.weir_with_all_signals(&[&run[..], &["echo ready; exec sleep 100"]].concat());
        let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
        first_line(&mut run);
        assert_eq!(mirrors(&room).len(), 1);
        kill(pid_of(&run), signal).unwrap();
        run.wait().unwrap();
        wait_until("the mirror's end", || mirrors(&room).is_empty());
        let status = room.ok(&["status", "x", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let run_dir = fs::read_dir(status["run_dir"].as_str().unwrap()).unwrap();
        let names = run_dir.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| name.starts_with("mirror-")).collect();
        assert_eq!(left, [""; 0]);
    }
    room.ok(&["run", "-i", "x", "true"]);
    room.ok(&["stop", "x"]);
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
}

/// daemon, whom fusermount3 finds on each machine.
const USER: u32 = 1;

/// The command as an ordinary user who may use /dev/fuse, in a mount namespace of the test's own.
fn run_as_user(room: &Room, arguments: &[&str]) -> Done {
    let program = room.path().join("weir");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
        for dir in [room.path(), room.memory()] {
            std::os::unix::fs::chown(dir, Some(USER), Some(USER)).unwrap();
        }
    }
    let setup = r#"
        set -e
        mknod "$0" c 10 229
        chmod 666 "$0"
        mount --bind "$0" /dev/fuse
        rm "$0"
        exec setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}""#;
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "bash", "-c", setup]);
    command.arg(room.path().join("fuse"));
    command.arg(USER.to_string()).arg(program);
    let weir = room.weir(arguments);
    command.args(weir.get_args()).env_clear();
    let given = weir.get_envs();
    command.envs(given.filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(room.path()).stdin(Stdio::null());
    Done::from_output(&command.output().unwrap())
}

#[test]
fn an_ordinary_user_mounts_by_fusermount3() {
    let Some(room) = room() else { return };
    let path = std::env::var_os("PATH").unwrap();
    if !std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists()) {
        weir_cluster::skip(
            "mounts of an ordinary user",
            "fusermount3 (apt-get install fuse3)",
        );
        return;
    }
    let script = "id -u; cd $WEIR_INSTANCE/mount; echo text > f; cat f; rm f; ls; \
                  grep -c \" $PWD .*user_id=1,\" /proc/self/mountinfo";
    let done = run_as_user(&room, &["run", "bash", "-c", script]).ended(0);
    assert_eq!(done.out, "1\ntext\n1\n", "{done:?}");
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn an_ordinary_user_finds_elevated_directories_by_the_kernel() {
    let Some(room) = room() else { return };
    let pfs = directory(&room, "pfs");
    std::os::unix::fs::chown(&pfs, Some(USER), Some(USER)).unwrap();
    let script =
        "id -u; cd pfs && echo text > f && cat f && mv f g && ls; grep CapEff /proc/self/status";
    let always = [
        "run",
        "--elevate",
        pfs.to_str().unwrap(),
        "--set",
        "run.mirror=always",
    ];
    let command = [&WITHOUT_CLIENT[..], &["bash", "-c", script]].concat();
    let done = run_as_user(&room, &[&always[..], &command].concat());
    if done.err.contains("directories in a namespace") || done.err.contains("fusermount3") {
        weir_cluster::skip(
            "mirrors of an ordinary user",
            "fusermount3, user namespaces",
        );
        return;
    }
    let done = done.ended(0);
    let expected = "1\ntext\ng\nCapEff:\t0000000000000000\n";
    assert_eq!(done.out, expected, "{done:?}");
    nothing_stays(&room);
    assert_eq!(fs::read_to_string(pfs.join("g")).unwrap(), "text\n");
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_namespace_has_the_prefix() {
    let Some(room) = room() else { return };
    let prefix = format!("/weir-test-{}", std::process::id());
    let script = format!(
        "id -u; pwd; cd {prefix}; echo text > f; cat f; rmdir {prefix} || ls -d {prefix}/*; \
         grep -c ' {prefix} .* fuse' /proc/self/mountinfo; touch /stray || ls /proc/self/exe; \
         ls -A / | grep -c '^weir-test'; grep CapPrm /proc/self/status"
    );
    let set = ["run", "--set", "mount.namespace=true"];
    let run = [&set[..], &["--mount", &prefix, "bash", "-c", &script]].concat();
    let no_rights = "CapPrm:\t0000000000000000\n";
    let expected = |uid: u32| {
        let pwd = room.path().canonicalize().unwrap();
        format!(
            "{uid}\n{}\ntext\n{prefix}/f\n1\n/proc/self/exe\n1\n",
            pwd.display()
        )
    };
    let done = run_as_user(&room, &run).ended(0);
    assert_eq!(done.out, expected(USER) + no_rights, "{done:?}");
    nothing_stays(&room);
    assert_eq!(room.left_behind(), [""; 0]);
    assert!(!Path::new(&prefix).exists());
    let names = fs::read_dir(room.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    let rooted = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("weir-root-");
    assert_eq!(names.iter().filter(rooted).count(), 0, "{names:?}");

    // Root needs no user namespace, and keeps its rights.
    let root = Room::new();
    let done = root.run(&run);
    let pwd = root.path().canonicalize().unwrap();
    let begin = format!("0\n{}\ntext\n", pwd.display());
    assert!(done.out.starts_with(&begin), "{done:?}");
    assert!(!Path::new(&prefix).exists());
    nothing_stays(&root);

    let refused = |arguments: &[&str], wanted: &str| {
        let done = root.run(arguments);
        assert_ne!(done.code, Some(0), "{arguments:?}: {done:?}");
        assert!(done.err.contains(wanted), "{arguments:?}: {done:?}");
    };
    let set = ["--set", "mount.namespace=true"];
    refused(
        &[&["start", "x"], &set[..]].concat(),
        "mount.namespace is for weir run",
    );
    refused(
        &[&["run", "--servers", "2"], &set[..], &["true"]].concat(),
        "one server",
    );
    let deep = ["--mount", "/no/such/prefix", "true"];
    refused(&[&["run"], &set[..], &deep].concat(), "no directory");
    let full = root.path().to_str().unwrap();
    refused(
        &[&["run"], &set[..], &["--mount", full, "true"]].concat(),
        "not empty",
    );
}

/// A program that the client cannot be put into is told before it starts, unless it finds the instance all the same.
#[test]
fn a_static_program_is_told_where_it_finds_the_instance() {
    let Some(room) = room() else {
        return;
    };
    room.write("main.c", "int main(void) { return 3; }\n");
    let compiled = std::process::Command::new("cc")
        .args(["-static", "-o", "program", "main.c"])
        .current_dir(room.path())
        .status();
    assert!(compiled.unwrap().success());
    let run = ["run", "--", "./program"];
    room.says(
        3,
        "is linked statically: it sees the instance only where",
        &run,
    );
    let unmounted = ["run", "--set", "mount.kernel=never", "--", "./program"];
    room.says(
        3,
        "does not see the instance, which is not mounted",
        &unmounted,
    );
    fs::create_dir(room.path().join("here")).unwrap();
    let here = room.path().join("here");
    let mounted = ["run", "--mount", here.to_str().unwrap(), "--", "./program"];
    let said = room.ends(3, &mounted);
    assert!(!said.err.contains("statically"), "{said:?}");
    let doctor = room.run(&["doctor", "./program"]);
    assert!(
        doctor.out.contains("program is linked statically"),
        "{doctor:?}"
    );
}

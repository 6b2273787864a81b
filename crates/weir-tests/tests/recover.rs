//! Servers that are killed under programs that write, and restarted: all completed writes of the
//! programs are kept.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_cluster::guard;
use weir_tests::build::{program_in, Compiler};
use weir_tests::launch::weir_binary;
use weir_tests::source_root;

/// The exit status of `survive` when its file system was lost under it.
const LOST: i32 = 3;
/// The number of lines in each writer's log before a server is killed.
const ENOUGH: usize = 60;

struct Room {
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
    survive: PathBuf,
}

impl Room {
    fn new() -> Room {
        let dir = source_root().join("tests/recovery");
        Room {
            dir: tempfile::tempdir().unwrap(),
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            survive: program_in(&dir, "survive.c", Compiler::C).unwrap(),
        }
    }

    fn weir(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(weir_binary().unwrap());
        command
            .args(arguments)
            .env("TMPDIR", self.dir.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env("WEIR_LAUNCH_DIRECTORY", self.dir.path())
            .env("WEIR_MEMORY_DIRECTORY", self.memory.path())
            .env("WEIR_MEMORY_BUDGET", "192M")
            .env("WEIR_FILE_BUDGET", "1G")
            .env("WEIR_MEMORY_WARM", "64M")
            .stdin(Stdio::null());
        command
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.weir(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self, seed: usize) -> PathBuf {
        self.dir.path().join(format!("log-{seed}"))
    }

    fn lines(&self, seed: usize) -> usize {
        std::fs::read_to_string(self.log(seed)).map_or(0, |log| log.lines().count())
    }

    fn survive(&self, rank: u16, seed: usize, what: &[&str]) -> Command {
        let mut command = self.weir(&["run", "-i", "x", "--rank", &rank.to_string(), "--"]);
        command.arg(&self.survive).arg("/weir").arg(self.log(seed));
        command.args(what);
        command
    }

    /// A writer in an elevated directory, whose files are moved only by a recovery.
    fn survive_in(&self, dir: &Path, rank: u16, seed: usize) -> Command {
        let mut command = self.weir(&["run", "-i", "x", "--rank", &rank.to_string(), "--"]);
        command.env("WEIR_DRAIN_WHILE_RUNNING", "false");
        command.arg(&self.survive).arg(dir).arg(self.log(seed));
        command.args(["write", &seed.to_string()]);
        command
    }

    fn writer(&self, rank: u16, seed: usize) -> Child {
        let seed_text = seed.to_string();
        let mut command = self.survive(rank, seed, &["write", &seed_text]);
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    /// Checks from `rank` the completed operations of the writer of `seed`.
    fn check(&self, rank: u16, seed: usize) {
        let output = self.survive(rank, seed, &["check"]).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let failed: Vec<&str> = out
            .lines()
            .filter(|line| !line.starts_with("ok "))
            .collect();
        assert!(output.status.success(), "{}", failed.join("\n"));
        assert!(out.contains(" passed, 0 failed"), "{out}");
    }

    fn pids(&self) -> Vec<i32> {
        self.pids_of("x")
    }

    fn server_pid_of(&self, name: &str) -> i32 {
        self.pids_of(name)[0]
    }

    /// The processes of the servers that respond, by rank.
    fn pids_of(&self, name: &str) -> Vec<i32> {
        let out = self.said(&["status", name, "--json"]);
        // With several servers, each has its object in a list; the object that sums them up follows it.
        let list = out.split_once("\"each\"");
        let pids = list.map_or(&out[..], |(_, each)| each).split("\"pid\":");
        let digits = |text: &str| -> String {
            let text = text.trim().chars();
            text.take_while(char::is_ascii_digit).collect()
        };
        let pids = pids.skip(1).map(|pid| digits(pid).parse().unwrap());
        let mut pids: Vec<i32> = pids.collect();
        if list.is_some() {
            pids.pop();
        }
        pids
    }

    fn server_pid(&self, rank: usize) -> i32 {
        self.pids()[rank]
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The writers of a killed server end by themselves: their calls fail.
fn end_writer(writer: Child) {
    let output = guard::wait_for_output(writer);
    assert_eq!(output.status.code(), Some(LOST), "{}", output.status);
}

/// Ends the instance, also when the test fails.
struct Instance<'r>(&'r Room);

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        let _ = self.0.weir(&["stop", "x"]).output();
    }
}

fn has_nothing_left(dir: &Path) -> bool {
    let mut parents = std::fs::read_dir(dir).unwrap().flatten();
    !parents.any(|parent| parent.path().join("x").exists())
}

#[test]
fn one_server_killed_again_and_again() {
    let room = Room::new();
    let _instance = Instance(&room);
    let rounds = 3;
    for round in 0..rounds {
        room.said(&["start", "x"]);
        for seed in 0..round * 3 {
            room.check(0, seed);
        }
        let seeds = round * 3..round * 3 + 3;
        let writers: Vec<Child> = seeds.clone().map(|seed| room.writer(0, seed)).collect();
        for seed in seeds {
            guard::wait_until("writers write", || room.lines(seed) >= ENOUGH);
        }
        kill(room.server_pid(0));
        writers.into_iter().for_each(end_writer);
    }
    room.said(&["start", "x"]);
    for seed in 0..rounds * 3 {
        room.check(0, seed);
    }
    room.said(&["stop", "x"]);
    assert!(has_nothing_left(room.memory.path()));
}

/// Extended attributes, of files and directories, from before and after a snapshot.
#[test]
fn extended_attributes_are_kept_by_every_server() {
    for (servers, ranks) in [("1", 1), ("4", 4)] {
        let room = Room::new();
        let _instance = Instance(&room);
        room.said(&["start", "x", "--servers", servers]);
        let at = |rank: usize, script: &str| {
            let rank = rank.to_string();
            room.said(&[
                "run", "-i", "x", "--rank", &rank, "--", "bash", "-c", script,
            ])
        };
        at(0, "mkdir /weir/d && setfattr -n user.dir -v is /weir/d");
        for rank in 0..ranks {
            let files = "for i in {1..50}; do > /weir/d/$RANK.$i && \
                setfattr -n user.of -v $RANK.$i /weir/d/$RANK.$i; done; \
                setfattr -x user.of /weir/d/$RANK.1; mv /weir/d/$RANK.2 /weir/moved.$RANK; \
                rm /weir/d/$RANK.3; > /weir/d/$RANK.3";
            at(rank, &files.replace("$RANK", &rank.to_string()));
        }
        let pids = room.pids();
        for pid in &pids {
            kill(*pid);
        }
        if ranks == 1 {
            room.said(&["start", "x"]);
        } else {
            guard::wait_until("all servers are back", || {
                let out = room.weir(&["status", "x", "--json"]).output().unwrap();
                let now = out.status.success().then(|| room.pids());
                now.is_some_and(|now| now.len() == ranks && !now.iter().any(|p| pids.contains(p)))
            });
        }
        let get = "getfattr --absolute-names --only-values -n";
        for rank in 0..ranks {
            assert_eq!(at(rank, &format!("{get} user.dir /weir/d")), "is");
            for of in 0..ranks {
                let got = at(
                    rank,
                    &format!("{get} user.of /weir/d/{of}.50 /weir/moved.{of}"),
                );
                assert_eq!(got, format!("{of}.50{of}.2"));
                let none = format!("getfattr --absolute-names -d /weir/d/{of}.1 /weir/d/{of}.3");
                assert_eq!(at(rank, &none), "");
            }
        }
    }
}

/// A batch script with a server that is killed between two steps, and other commands of the script.
#[test]
fn the_next_step_of_a_script_finds_what_the_one_before_had_written() {
    let room = Room::new();
    let _instance = Instance(&room);
    let said = |words: &[&str]| {
        let output = room.weir(words).env("SLURM_JOB_ID", "9").output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    said(&["start"]);
    let write = "seq 100000 > /weir/data; mkdir /weir/d; echo text > /weir/d/f";
    said(&["run", "--", "sh", "-c", write]);
    kill(room.server_pid_of("job-9"));
    guard::wait_until("the server is gone", || {
        room.weir(&["status", "job-9"])
            .output()
            .unwrap()
            .status
            .code()
            == Some(5)
    });
    let (_, err) = said(&["run", "--memory", "64M", "--", "true"]);
    assert!(err.contains("instance job-9 (job 9) is dead"), "{err}");
    said(&["start", "x"]);
    said(&["stop", "x"]);
    let read = "cat /weir/d/f; cksum < /weir/data; seq 100000 | cksum";
    let (out, err) = said(&["run", "--", "sh", "-c", read]);
    assert!(err.contains("a new server goes on with it"), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines[0], lines[1]), ("text", lines[2]), "{out}");
    said(&["stop"]);
    assert!(find(room.memory.path(), "journal").is_empty());
}

#[test]
fn after_a_stop_calls_below_the_mount_say_that_it_is_gone() {
    let room = Room::new();
    let dir = source_root().join("tests/recovery");
    // A directory of the kernel's that has the mount's name.
    let top = room.dir.path().join("top");
    std::fs::create_dir(&top).unwrap();
    std::fs::write(top.join("kernels"), "").unwrap();
    let mount = top.to_str().unwrap();
    for start in [
        &["start", "x", "--mount", mount][..],
        &["start", "x", "--mount", mount, "--servers", "2"],
    ] {
        room.said(start);
        let script = dir.join("stopped.py");
        let output = room
            .weir(&[
                "run",
                "-i",
                "x",
                "--",
                "python3",
                script.to_str().unwrap(),
                mount,
            ])
            .env("WEIR", weir_binary().unwrap())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(out.contains(" passed, 0 failed"), "{out}{err}");
        assert_eq!(output.status.code(), Some(125), "{out}{err}");
        let left: Vec<_> = std::fs::read_dir(&top).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

/// Cuts a journal after half of its records, like a file system that lost its end: by its length, or
/// with zeros.
fn cut_journal(path: &Path, with_zeros: bool) {
    let mut bytes = std::fs::read(path).unwrap();
    let mut edges = vec![72];
    loop {
        let at = *edges.last().unwrap();
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        if length == 0 {
            break;
        }
        edges.push(at + (16 + length).next_multiple_of(8));
    }
    let cut = edges[edges.len() / 2];
    if with_zeros {
        bytes[cut..].fill(0);
    } else {
        bytes.truncate(cut);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_journal_that_lost_its_end_is_not_taken_for_a_short_one() {
    let room = Room::new();
    let _instance = Instance(&room);
    for with_zeros in [false, true] {
        room.said(&["start", "x"]);
        let names = "for i in $(seq 32); do touch /weir/n$i; sync -f /weir; done";
        room.said(&["run", "-i", "x", "--", "sh", "-c", names]);
        kill(room.server_pid(0));
        guard::wait_until("the server is gone", || {
            room.weir(&["status", "x"]).output().unwrap().status.code() == Some(5)
        });
        let (journal, _) = journals(&room, 0);
        let whole = std::fs::read(&journal).unwrap();
        cut_journal(&journal, with_zeros);
        for words in [
            &["start", "x"][..],
            &["run", "-i", "x", "--", "ls", "/weir"],
        ] {
            let output = room.weir(words).output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{output:?}");
            assert!(err.contains(" were written: the last "), "{err}");
            assert!(err.contains("weir stop x clears it"), "{err}");
        }
        // The refusal changed nothing: with the whole journal everything is there again.
        std::fs::write(&journal, whole).unwrap();
        let listed = room.said(&["run", "-i", "x", "--", "sh", "-c", "ls /weir | wc -l"]);
        assert_eq!(listed.trim(), "32");
        room.said(&["stop", "x"]);
    }
}

#[test]
fn one_of_four_servers_killed_again_and_again() {
    let room = Room::new();
    let _instance = Instance(&room);
    room.said(&["start", "x", "--servers", "4"]);
    let rounds = 3;
    for round in 0..rounds {
        let victim = (1 + round) % 4;
        let seeds = round * 4..round * 4 + 4;
        let mut writers: Vec<(usize, Child)> = (0..4)
            .zip(seeds.clone())
            .map(|(rank, seed)| (usize::from(rank), room.writer(rank, seed)))
            .collect();
        for seed in seeds {
            guard::wait_until("writers write", || room.lines(seed) >= ENOUGH);
        }
        let killed = room.server_pid(victim);
        kill(killed);
        // Those of its own node are left behind; others may have been sending it a request at that
        // moment.
        let at = writers.iter().position(|(rank, _)| *rank == victim);
        end_writer(writers.remove(at.unwrap()).1);
        guard::wait_until("it is back", || {
            let out = room.weir(&["status", "x", "--json"]).output().unwrap();
            out.status.success() && room.pids().len() == 4 && room.server_pid(victim) != killed
        });
        for (_, mut writer) in writers {
            if writer.try_wait().unwrap().is_none() {
                writer.kill().unwrap();
            }
            writer.wait().unwrap();
        }
        for seed in 0..(round + 1) * 4 {
            for rank in 0..4 {
                room.check(rank, seed);
            }
        }
    }
    room.said(&["stop", "x"]);
    assert!(has_nothing_left(room.memory.path()));
}

/// Four servers and their agent, or the agent alone, killed under programs: what each of them had written is on the
/// parallel file system after `weir recover`.
#[test]
fn all_of_four_servers_killed_with_their_agent_again_and_again() {
    let room = Room::new();
    let pfs = room.dir.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let elevated = pfs.to_str().unwrap();
    for (round, waits_ms) in [0, 150, 400, 30, 700, 90].into_iter().enumerate() {
        room.said(&["start", "x", "--servers", "4", "--elevate", elevated]);
        let seeds: Vec<usize> = (round * 4..round * 4 + 4).collect();
        let start = |(rank, seed): (u16, &usize)| {
            let mut command = room.survive_in(&pfs, rank, *seed);
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let writers: Vec<Child> = (0..4).zip(&seeds).map(start).collect();
        for seed in &seeds {
            guard::wait_until("writers write", || room.lines(*seed) >= ENOUGH / 4);
        }
        std::thread::sleep(Duration::from_millis(waits_ms));
        let servers = room.pids();
        let agent = parent_of(servers[0]);
        match round % 3 {
            0 => kill_at_once(&[&servers[..], &[agent]].concat()),
            1 => kill(agent),
            _ => {
                kill_at_once(&[servers[1], servers[3], agent]);
            }
        }
        writers.into_iter().for_each(end_writer);
        for pid in servers {
            guard::wait_until("the servers are gone", || !is_there(pid));
        }
        let recovered = room.weir(&["recover", "x"]).output().unwrap();
        assert!(recovered.status.success(), "round {round}: {recovered:?}");
        assert!(has_nothing_left(room.memory.path()));
        for seed in seeds {
            let mut check = Command::new(&room.survive);
            let check = check.arg(&pfs).arg(room.log(seed)).arg("check").output();
            let check = check.unwrap();
            let out = String::from_utf8_lossy(&check.stdout);
            let failed = out.lines().filter(|line| !line.starts_with("ok "));
            let failed: Vec<&str> = failed.collect();
            assert!(check.status.success(), "{round} {seed}: {failed:?}");
            assert!(out.contains(" passed, 0 failed"), "{out}");
        }
    }
}

/// Three servers that were all killed, of which the first is lost: it has the roots of all trees.
struct WithoutFirst {
    room: Room,
    /// An elevated directory.
    pfs: PathBuf,
    /// An elevated directory of whose files none has bytes in the instance.
    empty: PathBuf,
    /// Where the files of `/weir` go.
    out: PathBuf,
}

impl WithoutFirst {
    const FILES: usize = 30;
    const SHARED: usize = 6;
    /// The bytes that each rank writes of a shared file.
    const PART: usize = 64 << 10;

    /// Has programs at each server write in turn, the first server's not first, and kills everything.
    fn start_and_kill() -> WithoutFirst {
        let room = Room::new();
        let [pfs, empty, out] = ["pfs", "empty", "out"].map(|name| room.dir.path().join(name));
        std::fs::create_dir_all(pfs.join("old")).unwrap();
        std::fs::create_dir(&empty).unwrap();
        for name in ["kept", "removed", "replaced"] {
            std::fs::write(pfs.join("old").join(name), "of the PFS").unwrap();
            std::fs::write(pfs.join(name), "of the PFS").unwrap();
        }
        for n in 1..=Self::FILES {
            std::fs::write(empty.join(n.to_string()), "of the PFS").unwrap();
        }
        let [elevated, other] = [&pfs, &empty].map(|dir| dir.to_str().unwrap());
        room.said(&[
            "start",
            "x",
            "--servers",
            "3",
            "--elevate",
            elevated,
            "--elevate",
            other,
        ]);
        let test = WithoutFirst {
            room,
            pfs,
            empty,
            out,
        };
        let writers = [1, 0, 2].map(|rank| test.write_at(rank));
        let servers = test.room.pids();
        kill_at_once(&[&servers[..], &[parent_of(servers[0])]].concat());
        for mut writer in writers {
            // Its program ends with its standard input.
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        for pid in servers {
            guard::wait_until("the servers are gone", || !is_there(pid));
        }
        test
    }

    /// A program of the server of `rank` that has written all it is to write.
    fn write_at(&self, rank: u16) -> Child {
        let written = self.room.dir.path().join(format!("written-{rank}"));
        let script = format!(
            "for dir in {pfs} /weir; do
                cd $dir
                mkdir -p old
                mkdir dir.{rank}
                for n in $(seq {shared}); do
                    dd if=/dev/zero of=shared.$n bs={part} count=1 seek={rank} conv=notrunc status=none
                done
                for n in $(seq {files}); do
                    for name in {rank}.$n dir.{rank}/$n old/{rank}.$n; do echo {rank} $n > $name; done
                done
                case {rank} in 1)
                    rm -f removed old/removed
                    for name in replaced old/replaced; do echo of rank 1 > $name; done
                esac
            done
            cd {empty}
            # The names of a directory are spread once two nodes have made some.
            case {rank} in 1) : > first ;; esac
            for n in $(seq {files}); do
                case {rank} in 1) rm $n ;; 0) : > $n ;; esac
            done
            : > {written}
            exec cat",
            pfs = self.pfs.display(),
            empty = self.empty.display(),
            shared = Self::SHARED,
            part = Self::PART,
            files = Self::FILES,
            written = written.display()
        );
        let rank_word = rank.to_string();
        let mut command = self
            .room
            .weir(&["run", "-i", "x", "--rank", &rank_word, "--"]);
        command.args(["bash", "-ec", &script]);
        command.env("WEIR_DRAIN_WHILE_RUNNING", "false");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let writer = command.spawn().unwrap();
        guard::wait_until("a program has written", || written.exists());
        writer
    }

    /// `weir recover`: its exit code, and all that it named.
    fn recover(&self) -> (Option<i32>, String) {
        let mut command = self.room.weir(&["recover", "x", "--drain-to"]);
        let output = command.arg(&self.out).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    }

    /// The files of a rank's programs below `top` that are there, each of which is whole.
    fn files_of(top: &Path, rank: u16) -> usize {
        let names = (1..=Self::FILES).flat_map(|n| {
            let names = [
                format!("{rank}.{n}"),
                format!("dir.{rank}/{n}"),
                format!("old/{rank}.{n}"),
            ];
            names.map(|name| (name, n))
        });
        let is_there = |(name, n): &(String, usize)| {
            let text = std::fs::read_to_string(top.join(name));
            text.is_ok_and(|text| {
                assert_eq!(text, format!("{rank} {n}\n"), "{name}");
                true
            })
        };
        names.filter(is_there).count()
    }
}

/// The files of the other servers are moved, and nothing is removed; all is moved once the first one is there again.
#[test]
fn what_the_other_servers_have_is_recovered_without_the_first() {
    let test = WithoutFirst::start_and_kill();
    let (journal, _) = journals(&test.room, 0);
    let aside = journal.with_file_name("aside");
    std::fs::rename(&journal, &aside).unwrap();
    let (code, told) = test.recover();
    assert_eq!(code, Some(7), "{told}");
    let lost = "server 0 on localhost cannot be brought back";
    assert!(told.contains(lost), "{told}");
    for top in [&test.pfs, &test.out] {
        assert_eq!(WithoutFirst::files_of(top, 0), 0, "{told}");
        let found = [1, 2].map(|rank| WithoutFirst::files_of(top, rank));
        assert!(
            found.iter().all(|found| *found >= WithoutFirst::FILES),
            "{found:?} {told}"
        );
        assert!(!top.join("shared.1").exists());
    }
    let shared = told.lines().find(|line| line.contains("/shared."));
    let bytes = format!("; these bytes cannot be read: 0 to {}", WithoutFirst::PART);
    assert!(shared.is_some_and(|line| line.ends_with(&bytes)), "{told}");
    let text = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    // Replaced in the root, whose link to what it covers only the first server had.
    assert_eq!(text(test.pfs.join("replaced")), "of rank 1\n", "{told}");
    for name in ["kept", "removed", "old/kept", "old/removed"] {
        assert_eq!(text(test.pfs.join(name)), "of the PFS", "{told}");
    }
    // Programs removed all, and made them anew, some where only the first server knows of it.
    let files = (1..=WithoutFirst::FILES).map(|n| text(test.empty.join(n.to_string())));
    let (new, of_pfs): (Vec<String>, Vec<String>) = files.partition(String::is_empty);
    assert!(!new.is_empty() && !of_pfs.is_empty(), "{told}");
    assert!(of_pfs.iter().all(|text| text == "of the PFS"));

    std::fs::rename(&aside, &journal).unwrap();
    let (code, told) = test.recover();
    assert_eq!(code, Some(0), "{told}");
    for top in [&test.pfs, &test.out] {
        for rank in 0..3 {
            assert_eq!(
                WithoutFirst::files_of(top, rank),
                3 * WithoutFirst::FILES,
                "{told}"
            );
        }
        for n in 1..=WithoutFirst::SHARED {
            let size = std::fs::metadata(top.join(format!("shared.{n}")))
                .unwrap()
                .len();
            assert_eq!(size, 3 * WithoutFirst::PART as u64);
        }
        assert_eq!(text(top.join("old/replaced")), "of rank 1\n");
    }
    for name in ["removed", "old/removed"] {
        assert!(!test.pfs.join(name).exists(), "{told}");
    }
    let mut files = (1..=WithoutFirst::FILES).map(|n| text(test.empty.join(n.to_string())));
    assert!(files.all(|text| text.is_empty()));
    assert!(has_nothing_left(test.room.memory.path()));
}

/// Kills processes, none of which sees another one's end before its own.
fn kill_at_once(pids: &[i32]) {
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(*pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }
    pids.iter().copied().for_each(kill);
}

fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    after_name.split(' ').nth(1).unwrap().parse().unwrap()
}

/// All files of this name below a directory.
fn find(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(find(&path, name)),
            Ok(_) if entry.file_name() == *name => found.push(path),
            _ => {}
        }
    }
    found
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Creates and removes names until its server is killed, so that its journal grows. When this returns,
/// the server is about to start a new journal.
fn fill_journal(room: &Room, rank: usize) -> Child {
    // Four processes, because one mostly waits for replies, and for long on a busy machine.
    let words = "import os
os.fork(), os.fork()
n = 0
while True:
    os.close(os.open(f'/weir/n{n % 64}-{os.getpid()}', os.O_CREAT | os.O_WRONLY))
    os.unlink(f'/weir/n{n % 64}-{os.getpid()}')
    n += 1";
    let rank_word = rank.to_string();
    let mut command = room.weir(&[
        "run", "-i", "x", "--rank", &rank_word, "--", "python3", "-c", words,
    ]);
    let filler = command.stderr(Stdio::null()).spawn().unwrap();
    let (_, new) = journals(room, rank);
    guard::wait_until("the journal is long", || new.exists());
    filler
}

/// A server's journal, and the one that may replace it.
fn journals(room: &Room, rank: usize) -> (PathBuf, PathBuf) {
    let name = match rank {
        0 => "x".to_owned(),
        rank => format!("x.{rank}"),
    };
    let all = find(room.memory.path(), "journal");
    let old = all
        .iter()
        .find(|path| path.parent().unwrap().ends_with(&name));
    let old = old.unwrap();
    (old.clone(), old.with_file_name("journal.new"))
}

/// Stops a server in the middle of starting a new journal.
fn stop_in_renewal(room: &Room, rank: usize, pid: i32) {
    let (old, new) = journals(room, rank);
    guard::wait_until("the journal is begun anew", || {
        if !new.exists() {
            return false;
        }
        signal(pid, rustix::process::Signal::STOP);
        let written = std::fs::metadata(&new).is_ok_and(|new| new.len() > 0);
        if !(written && old.exists()) {
            signal(pid, rustix::process::Signal::CONT);
            return false;
        }
        true
    });
}

#[test]
fn one_of_two_servers_killed_while_it_begins_its_journal_anew() {
    let room = Room::new();
    let _instance = Instance(&room);
    room.said(&["start", "x", "--servers", "2"]);
    // So many files that a snapshot takes many steps.
    let many = "mkdir /weir/many && cd /weir/many && touch $(seq 20000)";
    room.said(&["run", "-i", "x", "--", "bash", "-c", many]);
    for (round, victim) in [1, 0].into_iter().enumerate() {
        let mut filler = fill_journal(&room, victim);
        let seeds = [0, 1].map(|rank| (rank, round * 2 + rank));
        let writers =
            seeds.map(|(rank, seed)| (rank, room.writer(u16::try_from(rank).unwrap(), seed)));
        for ((_, seed), (_, mut writer)) in seeds.into_iter().zip(writers) {
            guard::wait_until("writers write", || room.lines(seed) >= ENOUGH);
            // Its output so far is enough to look for.
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        let killed = room.server_pid(victim);
        stop_in_renewal(&room, victim, killed);
        kill(killed);
        filler.wait().unwrap();
        guard::wait_until("it is back", || {
            let out = room.weir(&["status", "x", "--json"]).output().unwrap();
            out.status.success() && room.pids().len() == 2 && room.server_pid(victim) != killed
        });
        for (rank, seed) in seeds {
            room.check(u16::try_from(rank).unwrap(), seed);
            room.check(u16::try_from(1 - rank).unwrap(), seed);
        }
        let count = "ls /weir/many | wc -l";
        let listed = room.said(&["run", "-i", "x", "--", "bash", "-c", count]);
        assert_eq!(listed.trim(), "20000");
    }
    room.said(&["stop", "x"]);
    assert!(has_nothing_left(room.memory.path()));
}

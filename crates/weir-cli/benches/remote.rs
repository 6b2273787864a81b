//! Reads of what another node's server holds, beside what plain TCP makes of the same link in the
//! same run: `cargo build --release -p weir-preload && cargo bench -p weir-cli --bench remote`.
//!
//! Four servers on this machine over loopback. A program at server 1 writes a file; programs at
//! server 0 read it, by 1 MiB and 16 MiB, one and four of them at once, and every fourth piece of
//! 4 KiB of it, one by one and by lio_listio. Each round measures the link and then the reads, so
//! that both meet the same load; medians, and the median of the rounds' ratios.

#[path = "../../weir-fabric/benches/link/plain.rs"]
#[allow(dead_code)] // the echo is the fabric's
mod plain;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// What plain TCP writes and reads at a time: iperf3's default.
const STEP: usize = 128 << 10;
/// Bytes of the file.
const BYTES: usize = 512 << 20;
/// A scattered piece, and how far they are apart.
const PIECE: usize = 4096;
const STRIDE: usize = 4 * PIECE;
/// Pieces of one list.
const LIST: usize = 256;
const ROUNDS: usize = 7;
const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const FILE: &str = "/weir/remote";

/// Seconds that `act` takes.
fn timed(act: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    act();
    begin.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[allow(clippy::cast_precision_loss)] // rates
fn gb(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    match words.get(1).map(String::as_str) {
        Some("write") => write(),
        Some("read") => read(number(2), number(3), number(4)),
        Some("pieces") => pieces(number(2)),
        _ => measure(),
    }
}

fn write() {
    let file = File::create(FILE).expect("a file of weir");
    let bytes: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    for at in (0..BYTES).step_by(bytes.len()) {
        file.write_all_at(&bytes, at as u64).expect("written");
    }
    file.sync_all().expect("published");
}

/// Says that it is ready, does `act` whenever it is told to, and says so.
fn at_each_word(mut act: impl FnMut()) {
    act(); // what is looked up once is
    println!("ready");
    for _ in std::io::stdin().lines() {
        act();
        println!("done");
    }
}

fn read(size: usize, from: usize, bytes: usize) {
    let file = File::open(FILE).expect("a file of weir");
    let mut buffer = vec![1; size];
    at_each_word(|| {
        for at in (from..from + bytes).step_by(size) {
            file.read_exact_at(&mut buffer, at as u64).expect("read");
        }
    });
}

fn pieces(list: usize) {
    let file = File::open(FILE).expect("a file of weir");
    let count = piece_count(list);
    let mut buffer = vec![1; count * PIECE];
    at_each_word(|| {
        let all = buffer.chunks_mut(PIECE).enumerate();
        if list == 1 {
            for (i, piece) in all {
                let at = (i * STRIDE) as u64;
                file.read_exact_at(piece, at).expect("read");
            }
            return;
        }
        let block = |(i, piece): (usize, &mut [u8])| {
            // SAFETY: a control block of zeros is one that asks for nothing yet.
            let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
            block.aio_fildes = file.as_raw_fd();
            block.aio_lio_opcode = libc::LIO_READ;
            block.aio_buf = piece.as_mut_ptr().cast();
            block.aio_nbytes = PIECE;
            block.aio_offset = i64::try_from(i * STRIDE).expect("an offset");
            block
        };
        let mut blocks: Vec<libc::aiocb> = all.map(block).collect();
        for blocks in blocks.chunks_mut(list) {
            let pointers: Vec<*mut libc::aiocb> = blocks.iter_mut().map(|b| &raw mut *b).collect();
            let count = i32::try_from(pointers.len()).expect("a short list");
            // SAFETY: blocks and their buffers live until all is done, for which this waits.
            let done = unsafe {
                libc::lio_listio(
                    libc::LIO_WAIT,
                    pointers.as_ptr(),
                    count,
                    std::ptr::null_mut(),
                )
            };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
    });
}

/// Fewer one by one, which takes long.
fn piece_count(list: usize) -> usize {
    let all = BYTES / STRIDE;
    if list == 1 {
        all / 16
    } else {
        all
    }
}

struct Instance(String);

impl Instance {
    fn start() -> Instance {
        let name = format!("remote{}", std::process::id());
        let start = ["start", &name, "--servers", "4", "--memory", "4GiB"];
        let started = Command::new(WEIR).args(start).status();
        assert!(started.expect("weir starts").success());
        Instance(name)
    }

    /// This program, at one of the servers.
    fn at(&self, rank: &str, words: &[String]) -> Command {
        let me = std::env::current_exe().expect("this program");
        let mut command = Command::new(WEIR);
        command.args(["run", "-i", &self.0, "--rank", rank, "--"]);
        command.arg(me).args(words);
        command
    }

    fn readers(&self, count: usize, words: impl Fn(usize) -> Vec<String>) -> Vec<Reader> {
        let start = |i: usize| {
            let mut command = self.at("0", &words(i));
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().expect("a reader");
            let said = BufReader::new(process.stdout.take().expect("piped"));
            Reader { process, said }
        };
        let mut all: Vec<Reader> = (0..count).map(start).collect();
        for reader in &mut all {
            reader.hear("ready");
        }
        all
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = Command::new(WEIR).args(["stop", &self.0]).output();
    }
}

struct Reader {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Reader {
    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a word");
        assert_eq!(line.trim(), word);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Seconds until all have done it once more.
fn once(readers: &mut [Reader]) -> f64 {
    timed(|| {
        for reader in readers.iter_mut() {
            let stdin = reader.process.stdin.as_mut().expect("piped");
            stdin.write_all(b"go\n").expect("told");
        }
        for reader in readers.iter_mut() {
            reader.hear("done");
        }
    })
}

fn measure() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let instance = Instance::start();
    let wrote = instance.at("1", &["write".to_owned()]).status();
    assert!(wrote.expect("a writer").success());
    for count in [1, 4] {
        for size in [1_usize << 20, 16 << 20] {
            let each = BYTES / count;
            let numbers = |i: usize| [size, i * each, each].map(|n| n.to_string());
            let mut readers = instance.readers(count, |i| {
                let word = ["read".to_owned()];
                word.into_iter().chain(numbers(i)).collect()
            });
            let name = format!("read {} MiB, {count} streams", size >> 20);
            row(&name, count, BYTES, || once(&mut readers));
        }
    }
    for list in [1, LIST] {
        let mut readers = instance.readers(1, |_| vec!["pieces".to_owned(), list.to_string()]);
        let name = format!("4 KiB pieces, {list} at a time");
        row(&name, 1, piece_count(list) * PIECE, || once(&mut readers));
    }
}

fn row(name: &str, streams: usize, bytes: usize, mut weir: impl FnMut() -> f64) {
    let rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let link = gb(BYTES, plain::stream(streams, BYTES, STEP, STEP));
            (link, gb(bytes, weir()))
        })
        .collect();
    let of = |what: fn(&(f64, f64)) -> f64| median(rounds.iter().map(what).collect());
    println!(
        "{name:<28} link {:6.2} GB/s   weir {:6.3} GB/s   ratio {:.3}",
        of(|r| r.0),
        of(|r| r.1),
        of(|r| r.1 / r.0),
    );
}

//! `weir drain`.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufReader, ErrorKind, IsTerminal};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weir_config::{Config, Environment};
use weir_instance::size::bytes;
use weir_mover::SlowCall;

use super::messages::{
    receive, send, sockets, DrainReply, DrainRequest, DrainStatus, DrainStep, DrainVerdict,
    LINE_BYTES,
};
use crate::args::DrainArgs;
use crate::exit::Failure;
use crate::locate::live_run_dir;

/// The longest reply that is read, bytes: it names a hundred files.
const REPLY_BYTES: u64 = 2 * LINE_BYTES;
/// The longest wait for one reply.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// A silence of this length is reported: a drain replies more often than that.
const SILENCE: Duration = Duration::from_millis(700);
/// The shortest wait for a reply: a timeout of 0 would mean no limit.
const SHORTEST_READ: Duration = Duration::from_millis(1);

/// The answer of a drain, for scripts.
#[derive(Serialize)]
struct JsonAnswer<'r> {
    #[serde(flatten)]
    status: Option<&'r DrainStatus>,
    verdict: Option<DrainVerdict>,
    reason: Option<&'r str>,
}

impl JsonAnswer<'_> {
    fn new(reply: &DrainReply) -> JsonAnswer<'_> {
        JsonAnswer {
            status: reply.status.as_ref(),
            verdict: reply.verdict,
            reason: reply.reason.as_deref(),
        }
    }
}

/// `weir drain`.
pub fn ask(args: &DrainArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let mut request = DrainRequest {
        begin: args.pause.change().is_none(),
        wait: args.wait,
        pause: args.pause.change(),
        ..DrainRequest::default()
    };
    for path in &args.paths {
        let path = std::path::absolute(path).context("a path")?;
        let path: PathBuf = path.components().collect();
        request.paths.push(path.into_os_string().into_vec());
    }
    let until = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut replies = Vec::new();
    let mut asked = BTreeSet::new();
    let mut waiting: VecDeque<_> = sockets(&run_dir).context("the run directory")?.into();
    while let Some(socket) = waiting.pop_front() {
        asked.insert(socket.clone());
        let stream = match UnixStream::connect(&socket) {
            Ok(stream) => stream,
            // Its process was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(anyhow!(error).context(socket.display().to_string()).into()),
        };
        if let Some(reply) = talk(&stream, &request, until)? {
            replies.push(reply);
            continue;
        }
        // Another process may have taken its place.
        let found = sockets(&run_dir).unwrap_or_default().into_iter();
        waiting = found.filter(|socket| !asked.contains(socket)).collect();
        if waiting.is_empty() {
            return Err(anyhow!("the drain has ended meanwhile; weir run reports how").into());
        }
    }
    if replies.is_empty() {
        return Err(anyhow!(
            "nothing drains the instance in {} from this node: weir run --drain-to and --elevate do, from the \
             node where they run; weir stage out moves files at once",
            run_dir.display()
        )
        .into());
    }
    if args.json {
        let answers: Vec<_> = replies.iter().map(JsonAnswer::new).collect();
        outln!("{}", serde_json::to_string(&answers).context("the state")?);
    } else {
        for status in replies.iter().filter_map(|reply| reply.status.as_ref()) {
            outln!("{}", in_words(status));
        }
    }
    check_paths(&request, &replies)?;
    if request.pause.is_some() && !args.wait {
        // The pause has begun or ended, even if not everything is safe.
        return Ok(());
    }
    judge(&replies)
}

/// Refuses a path that is in the tree of no drain.
fn check_paths(request: &DrainRequest, replies: &[DrainReply]) -> Result<(), Failure> {
    let is_foreign = |path: &&Vec<u8>| replies.iter().all(|reply| reply.foreign.contains(path));
    match request.paths.iter().find(is_foreign) {
        None => Ok(()),
        Some(path) => Err(Failure::Refused(format!(
            "{} is not in the instance, nor in a directory that is elevated",
            String::from_utf8_lossy(path)
        ))),
    }
}

/// Sends a request, and reads replies up to the last one, or until the time `until`. `None`: the drain has ended.
fn talk(
    stream: &UnixStream,
    request: &DrainRequest,
    until: Option<Instant>,
) -> Result<Option<DrainReply>, Failure> {
    match send(stream, request) {
        Err(error) if is_end(&error) => return Ok(None),
        sent => sent.context("asking the drain")?,
    }
    let mut reader = BufReader::new(stream);
    let bar = progress_bar();
    let mut last = DrainReply::default();
    let mut answered = Instant::now();
    loop {
        let time = until.map_or(REPLY_TIME, |until| {
            let left = until.saturating_duration_since(Instant::now());
            left.clamp(SHORTEST_READ, REPLY_TIME)
        });
        stream
            .set_read_timeout(Some(time))
            .context("asking the drain")?;
        let mut reply: DrainReply = match receive(&mut reader, REPLY_BYTES) {
            Ok(reply) => reply,
            Err(error) if is_timeout(&error) => {
                bar.finish_and_clear();
                last.verdict = Some(DrainVerdict::NotYet);
                let silence = answered.elapsed();
                if silence >= SILENCE {
                    last.reason = Some(format!(
                        "not everything is known to be safe: the drain has not answered for {:.0} s",
                        silence.as_secs_f64()
                    ));
                }
                return Ok(Some(last));
            }
            Err(error) if is_end(&error) => {
                bar.finish_and_clear();
                return Ok(None);
            }
            Err(error) => return Err(anyhow!(error).context("reading from the drain").into()),
        };
        answered = Instant::now();
        if let Some(status) = &reply.status {
            draw(&bar, status);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            reply.verdict.get_or_insert(DrainVerdict::NotYet);
        }
        if reply.verdict.is_some() {
            bar.finish_and_clear();
            return Ok(Some(reply));
        }
        last = reply;
    }
}

fn is_end(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {msg}");
    bar.with_style(style.expect("a template of ours"))
}

fn draw(bar: &ProgressBar, status: &DrainStatus) {
    bar.set_length(status.round_bytes);
    bar.set_position(status.round_bytes_done);
    bar.set_message(in_words(status));
}

/// The state for people, in a line.
fn in_words(status: &DrainStatus) -> String {
    let files = |files: u64, size: u64| format!("{files} files ({})", bytes(size));
    let mut parts = vec![format!(
        "{} safe in {}",
        files(status.safe_files, status.safe_bytes),
        status.target.display()
    )];
    if status.pending_files > 0 {
        let pending = files(status.pending_files, status.pending_bytes);
        parts.push(format!("{pending} are not"));
    }
    if status.evicted_files > 0 {
        let evicted = files(status.evicted_files, status.evicted_bytes);
        parts.push(format!("{evicted} evicted"));
    }
    let mut count = |number: u64, what: &str| {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    };
    count(
        status.open_files,
        "of them open for writing or not laminated",
    );
    count(status.analysis_files, "of them await their analysis");
    count(status.failed_files, "of them could not be moved");
    count(status.names_due, "names to change");
    count(status.waiting_writes.into(), "writes wait for room");
    if status.is_paused {
        parts.push("paused".to_owned());
    }
    if status.step != DrainStep::Idle && status.round_bytes > 0 {
        parts.push(rate_in_words(status));
    }
    if let Some(slow) = status.slow_calls.first() {
        parts.push(in_words_slow(slow));
    }
    parts.push(match status.rounds {
        0 => "no look at the instance yet".to_owned(),
        _ => format!("as of {:.0} s ago", status.age_s),
    });
    parts.join(", ")
}

/// A slow call, for people.
pub fn in_words_slow(call: &SlowCall) -> String {
    format!(
        "{} {} has not returned for {:.0} s",
        call.step,
        call.path.display(),
        call.seconds
    )
}

/// The rate of the round under way.
fn rate_in_words(status: &DrainStatus) -> String {
    let done = bytes(status.round_bytes_done);
    let all = bytes(status.round_bytes);
    // For people.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let (rate, left) = {
        let rate = status.round_bytes_done as f64 / status.round_seconds.max(0.001);
        let left = status.round_bytes.saturating_sub(status.round_bytes_done) as f64;
        (rate as u64, left / rate.max(1.0))
    };
    format!(
        "moving: {done} of {all}, {}/s, {left:.0} s left",
        bytes(rate)
    )
}

/// The exit code: that of the drain with the worst answer.
fn judge(replies: &[DrainReply]) -> Result<(), Failure> {
    let reason_of = |verdict: DrainVerdict| {
        let mut replies = replies.iter();
        let found = replies.find(|reply| reply.verdict == Some(verdict))?;
        Some(found.reason.clone().unwrap_or_default())
    };
    if let Some(path) = reason_of(DrainVerdict::NoSuchPath) {
        return Err(Failure::Refused(format!(
            "{path}: not in the instance, or not to be moved, when the drain looked last"
        )));
    }
    if let Some(reason) = reason_of(DrainVerdict::Failed) {
        return Err(Failure::NotMoved(format!("{reason}; it is tried again")));
    }
    match reason_of(DrainVerdict::NotYet) {
        None => Ok(()),
        Some(reason) if reason.is_empty() => {
            Err(Failure::NotYet("not everything is safe yet".to_owned()))
        }
        Some(reason) => Err(Failure::NotYet(reason)),
    }
}

//! The examples of docs/SEMANTICS.md, each run as it stands there: the code in a fence of `sh`, `python`
//! or `c` runs in an empty directory of weir, and must print the contents of the `text` fence that
//! follows it. The instance has one server, or the number in `WEIR_TEST_SERVERS`. Words after the
//! language state the needs of an example:
//!
//! | word | meaning |
//! | --- | --- |
//! | `nodes` | four servers: `on RANK COMMAND` runs a command at one of them |
//! | `mount` | a kernel mount; skipped, with a line that says so, where the machine allows none |
//! | `nomount` | runs with `mount.kernel=never` |

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use weir_cluster::skip::Lack;
use weir_tests::launch::{servers_wanted, Target};
use weir_tests::mount::{why_none, KernelMount};
use weir_tests::source_root;
use weir_tests::trials;

struct Example {
    /// The heading above it, and its number under that heading.
    name: String,
    language: String,
    /// True if it runs on four servers.
    nodes: bool,
    mount: KernelMount,
    code: String,
    output: String,
}

/// The words after the language of a fence.
struct Words {
    language: String,
    nodes: bool,
    mount: KernelMount,
}

impl Words {
    fn of(text: &str) -> Result<Words> {
        let mut words = text.split_whitespace();
        let mut found = Words {
            language: words.next().unwrap_or_default().to_owned(),
            nodes: false,
            mount: KernelMount::Either,
        };
        for word in words {
            match word {
                "nodes" => found.nodes = true,
                "mount" => found.mount = KernelMount::Needed,
                "nomount" => found.mount = KernelMount::Never,
                other => bail!("`{text}`: {other} means nothing"),
            }
        }
        Ok(found)
    }
}

/// A fence: its language, its text, and the line it begins at.
type Fence = (String, String, usize);

fn examples(document: &str) -> Result<Vec<Example>> {
    let mut found: Vec<Example> = Vec::new();
    let mut heading = String::new();
    let mut open: Option<Fence> = None;
    let mut asked: Option<Fence> = None;
    for (at, line) in document.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some((_, text, _)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, Some(language)) => open = Some((language.to_owned(), String::new(), at + 1)),
            (Some(_), Some(_)) => {
                let Some((language, text, begin)) = open.take() else {
                    continue;
                };
                match (language.as_str(), asked.take()) {
                    ("text", Some((language, code, _))) => {
                        let same = |e: &&Example| e.name.starts_with(&format!("{heading}::"));
                        let number = found.iter().filter(same).count() + 1;
                        let name = format!("{heading}::{number}");
                        let words = Words::of(&language)?;
                        found.push(Example {
                            name,
                            language: words.language,
                            nodes: words.nodes,
                            mount: words.mount,
                            code,
                            output: text,
                        });
                    }
                    (_, Some((.., line))) => bail!("line {line}: an example without its output"),
                    ("text", None) => {} // a picture
                    (_, None) => asked = Some((language, text, begin)),
                }
            }
            (None, None) => {
                if let Some(title) = line.strip_prefix("## ") {
                    heading = title.to_lowercase().replace(' ', "_");
                }
            }
        }
    }
    ensure!(open.is_none() && asked.is_none(), "a fence is not closed");
    Ok(found)
}

/// The words that run an example's code.
fn words(example: &Example) -> Result<Vec<String>> {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let code = example.code.as_str();
    Ok(match example.language.as_str() {
        "sh" if example.nodes => owned(&["/bin/bash", "-c", &format!("{ON}{code}")]),
        "sh" => owned(&["/bin/bash", "-c", code]),
        "python" => owned(&["/usr/bin/python3", "-c", code]),
        "c" => owned(&[
            "/bin/bash",
            "-c",
            "cc -Wall -Werror -D_GNU_SOURCE -x c -o /tmp/weir-example-$$ - <<< \"$1\" && \
             { /tmp/weir-example-$$; code=$?; rm /tmp/weir-example-$$; exit $code; }",
            "example",
            code,
        ]),
        other => bail!("nothing runs `{other}`"),
    })
}

/// Outside of weir: the examples write out weir's paths.
const ON: &str = "cd /
on() {
    local rank=$1
    shift
    if [ \"$rank\" = 0 ]; then \"$@\"; else WEIR_INSTANCE=$WEIR_INSTANCE.$rank \"$@\"; fi
}
";

fn run(example: &Example, binary: &PathBuf) -> Result<()> {
    let mut command = Command::new(binary);
    let beside = binary.parent().context("the program's directory")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(beside.to_owned()).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(path)?);
    command.args(["run", "--memory", "256M", "--report", "none"]);
    command.args(example.mount.options());
    let servers = match example.nodes {
        true => 4,
        false => servers_wanted()?,
    };
    if servers > 1 {
        command.arg("--servers").arg(servers.to_string());
    }
    command
        .arg("--")
        .args(["/bin/bash", "-c", "cd /weir && exec \"$@\"", "in-weir"])
        .args(words(example)?)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    let done = command.output().context("start")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let complaints = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{}\n{said}{complaints}", done.status);
    ensure!(
        said == example.output,
        "says\n{said}\nand not\n{}\n{complaints}",
        example.output
    );
    Ok(())
}

/// Checks that the table of refusals has a row for each name by which the client counts, and no other.
fn refusals(document: &str) -> Result<()> {
    let names = document.lines().filter_map(|line| {
        let cell = line.strip_prefix("| `")?;
        Some(cell.split_once('`')?.0)
    });
    let mut told: Vec<&str> = names.collect();
    let mut counted: Vec<&str> = weir_core::node::region::REFUSAL_NAMES.to_vec();
    counted.retain(|name| *name != "other");
    told.sort_unstable();
    counted.sort_unstable();
    ensure!(told == counted, "told: {told:?}\ncounted: {counted:?}");
    Ok(())
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let path = source_root().join("docs/SEMANTICS.md");
    let document = std::fs::read_to_string(&path).expect("the document");
    let examples =
        examples(&document).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(examples.len() >= 18, "the document has its examples");
    let binary = match Target::from_environment() {
        Ok(Target::Weir { binary }) => Ok(binary),
        Ok(Target::Directory(_)) => Err("these are about weir".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    };
    let table = Trial::test("refused::the_table_names_every_refusal", move || {
        refusals(&document).map_err(|error| Failed::from(format!("{error:#}")))
    });
    let no_mount = why_none();
    let trials = examples.into_iter().map(|example| {
        if let Some(why) = no_mount.as_ref().filter(|_| example.mount.is_needed()) {
            let why = format!("no kernel mount: {why}");
            return trials::skipped(&example.name, Lack::Kernel, &why);
        }
        let binary = binary.clone();
        Trial::test(example.name.clone(), move || {
            let done = binary
                .map_err(anyhow::Error::msg)
                .and_then(|binary| run(&example, &binary));
            done.map_err(|error| Failed::from(format!("{}\n{error:#}", example.code)))
        })
    });
    let trials = trials.chain([table]).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

//! Lists of hosts: `a,b[1-3,07]-ib`, and files with a host a line.
//!
//! The brackets are those of Slurm, Flux and pdsh: numbers and ranges, the width of the first
//! number kept (`[08-10]` is 08, 09, 10), several brackets a name.

use anyhow::{bail, ensure, Context, Result};
use weir_core::roster::{is_host, MEMBERS_MOST};

/// The hosts of a list, in its order, each once.
pub fn expand(list: &str) -> Result<Vec<String>> {
    once(expand_all(list)?)
}

/// The same, as often as they stand there.
pub fn expand_all(list: &str) -> Result<Vec<String>> {
    let mut hosts = Vec::new();
    for item in split(list)? {
        expand_item(item, String::new(), &mut hosts)?;
    }
    Ok(hosts)
}

/// The hosts of a hostfile: the first word of each line, without what MPI launchers add to it
/// (`host slots=4`, `host:4`). `#` starts a comment.
pub fn of_file(text: &str) -> Result<Vec<String>> {
    let mut hosts = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let Some(word) = line.split_whitespace().next() else {
            continue;
        };
        let slots = |host: &&str, n: &str| !host.contains(':') && n.parse::<u32>().is_ok();
        let host = match word.rsplit_once(':') {
            Some((host, n)) if slots(&host, n) => host,
            _ => word,
        };
        hosts.extend(expand(host)?);
    }
    once(hosts)
}

/// Keeps the first of each name: batch systems list a host once a slot.
pub fn once(hosts: Vec<String>) -> Result<Vec<String>> {
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for host in hosts {
        ensure!(is_host(&host), "`{host}` is no name of a host");
        if seen.insert(host.clone()) {
            kept.push(host);
        }
    }
    ensure!(!kept.is_empty(), "no host is named");
    ensure!(kept.len() <= MEMBERS_MOST, "more than {MEMBERS_MOST} hosts");
    Ok(kept)
}

/// Splits at the commas that are not in brackets.
fn split(list: &str) -> Result<Vec<&str>> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        ensure!((0..=1).contains(&depth), "`{list}`: brackets do not match");
    }
    ensure!(depth == 0, "`{list}`: brackets do not match");
    items.push(&list[start..]);
    items.retain(|item| !item.trim().is_empty());
    Ok(items)
}

/// Adds `before` followed by every expansion of `rest`.
fn expand_item(rest: &str, before: String, hosts: &mut Vec<String>) -> Result<()> {
    let Some((plain, from)) = rest.split_once('[') else {
        ensure!(
            hosts.len() <= MEMBERS_MOST,
            "more than {MEMBERS_MOST} hosts"
        );
        hosts.push((before + rest).trim().to_owned());
        return Ok(());
    };
    let (inside, after) = from.split_once(']').context("brackets do not match")?;
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| -> Result<u32> {
            text.trim().parse().with_context(|| format!("`[{inside}]`"))
        };
        let (low, high) = (number(first)?, number(last)?);
        if low > high || (high - low) as usize > MEMBERS_MOST {
            bail!("`[{inside}]`: the range is empty or too long");
        }
        let width = first.trim().len();
        for n in low..=high {
            expand_item(after, format!("{before}{plain}{n:0width$}"), hosts)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &str) -> String {
        expand(list).map_or_else(|e| format!("error: {e:#}"), |hosts| hosts.join(" "))
    }

    #[test]
    fn brackets_are_expanded_in_order() {
        assert_eq!(all("a,b[1-3],c"), "a b1 b2 b3 c");
        assert_eq!(all("n[08-10,2]-ib"), "n08-ib n09-ib n10-ib n2-ib");
        assert_eq!(all("r[0-1]n[1-2]"), "r0n1 r0n2 r1n1 r1n2");
        assert_eq!(all(" a , a,10.0.0.1 "), "a 10.0.0.1");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            ",",
            "a[1-",
            "a]1[",
            "a[3-1]",
            "a[x]",
            "a[1-99999999]",
            "-oProxyCommand=x",
            "a;b",
            "a[[1]]",
        ] {
            assert!(all(bad).starts_with("error"), "{bad}: {}", all(bad));
        }
    }

    #[test]
    fn hostfiles_of_launchers_are_understood() {
        let text = "# comment\na slots=4\nb:2 # two\n\na\nc[1-2]\nfd00::1\n";
        assert_eq!(of_file(text).unwrap(), ["a", "b", "c1", "c2", "fd00::1"]);
        assert!(of_file("\n# none\n").is_err());
    }
}

//! Where a file's bytes live: `weir ls --layout`.

use anyhow::{Context, Result};
use weir_core::extent::{Layout, Tiers};
use weir_core::names::Attr;
use weir_core::proto::{Hold, Locate};
use weir_core::types::Ino;
use weir_instance::connection::Connection;
use weir_instance::size::bytes;

/// Asks where the bytes of a regular file are: all that is published, and what programs of the
/// asked server's node wrote.
pub fn layout(connection: &mut Connection, ino: Ino) -> Result<Layout> {
    let write = false;
    let Attr { ino, size, .. } = connection.call(Hold { ino, write })?;
    let mut layout = Layout::default();
    let mut offset = 0;
    while offset < size {
        let length = size - offset;
        let located = connection.call(Locate {
            ino,
            offset,
            length,
        })?;
        let end = located.known_to.min(size);
        layout.add(&located.runs, offset, end);
        offset = Some(end)
            .filter(|end| *end > offset)
            .context("the server does not say where bytes are")?;
    }
    Ok(layout)
}

/// A line a server.
pub fn lines(layout: &Layout) -> impl Iterator<Item = String> + '_ {
    layout.servers().map(|(rank, tiers)| line(rank, tiers))
}

fn line(rank: u16, tiers: Tiers) -> String {
    let (memory, file) = (bytes(tiers.memory_bytes), bytes(tiers.file_bytes));
    format!("server {rank}: {memory} in memory, {file} in files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_server_and_its_tiers() {
        let tiers = Tiers {
            memory_bytes: 0,
            file_bytes: 10,
        };
        assert_eq!(line(3, tiers), "server 3: 0 B in memory, 10 B in files");
    }
}

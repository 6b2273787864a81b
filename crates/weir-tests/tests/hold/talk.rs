//! A program on a node that waits for a line before each of its steps, and answers by a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use weir_tests::build::Compiler;

use super::probes::Place;
use super::room::{finish, program};

pub struct Talk {
    child: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Talk {
    /// Starts the program of a source in tests/hold.
    pub fn start(room: &impl Place, node: usize, source: &str, words: &[&str]) -> Talk {
        let program = program(source, Compiler::C).display().to_string();
        let mut command = room.run(node, &program, words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let ask = child.stdin.take().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Talk { child, ask, told }
    }

    pub fn send_line(&mut self) {
        self.ask.write_all(b"\n").unwrap();
    }

    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    /// Closes its input, and waits for its end; returns the output after the last line that was read.
    #[track_caller]
    pub fn wait_for_end(self, limit: Duration) -> String {
        let Talk { child, ask, told } = self;
        drop(ask);
        let rest = std::io::read_to_string(told).unwrap();
        assert!(finish(child, limit).status.success(), "{rest}");
        rest
    }
}

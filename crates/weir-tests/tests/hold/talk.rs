//! A program on a node that waits for a line before each of its steps, and answers by a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{channel, Receiver};

use weir_cluster::guard;
use weir_tests::build::Compiler;

use super::probes::Place;
use super::room::program;

pub struct Talk {
    child: Child,
    ask: ChildStdin,
    /// The lines of its output.
    told: Receiver<String>,
}

impl Talk {
    /// Starts the program of a source in tests/hold.
    pub fn start(room: &impl Place, node: usize, source: &str, words: &[&str]) -> Talk {
        let program = program(source, Compiler::C).display().to_string();
        let mut command = room.run(node, &program, words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let ask = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(line + "\n");
            }
        });
        Talk { child, ask, told }
    }

    pub fn send_line(&mut self) {
        self.send("");
    }

    /// Sends a line with this text.
    pub fn send(&mut self, text: &str) {
        self.ask.write_all(format!("{text}\n").as_bytes()).unwrap();
    }

    /// The next line of its output, or the empty string after the last one.
    ///
    /// # Panics
    /// If the program hangs.
    #[track_caller]
    pub fn read_line(&mut self) -> String {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        match self.told.recv_timeout(guard::HANG) {
            Ok(line) => line,
            Err(Disconnected) => String::new(),
            Err(Timeout) => panic!("it hangs: {:?}", self.child),
        }
    }

    /// Closes its input, and waits for its end; returns the output after the last line that was read.
    #[track_caller]
    pub fn wait_for_end(self) -> String {
        let Talk { child, ask, told } = self;
        drop(ask);
        let output = guard::wait_for_output(child);
        let rest: String = told.iter().collect();
        assert!(output.status.success(), "{rest}");
        rest
    }
}

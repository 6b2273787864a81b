//! Messages on standard error.
//!
//! `eprintln!` panics if its line cannot be written: the file system of a job's output is full, or over its quota, or the reader of
//! a pipe has ended. Then a command would end that has a drain to finish. So a line that cannot be written is lost, and the work
//! goes on.

use std::fmt::Arguments;
use std::io::Write;

/// As [`eprintln!`], but a failure to write is ignored.
#[macro_export]
macro_rules! errln {
    ($($what:tt)*) => { $crate::errln::write(format_args!("{}\n", format_args!($($what)*))) };
}

/// Writes a text by one call, so that lines of several processes do not mix.
pub fn write(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

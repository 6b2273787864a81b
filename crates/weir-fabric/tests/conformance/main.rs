//! One suite for all transports: what a [`weir_fabric::Fabric`] does, whatever carries it.
//!
//! | module | subject |
//! | --- | --- |
//! | `suite` | the cases |
//! | `servers` | what they are written in, and what a transport must give: `Transport` |
//! | `tcp` | over loopback |
//!
//! Another transport implements `Transport` in a module of its own and gets a line in `main`.

mod servers;
mod suite;
mod tcp;

use libtest_mimic::{Arguments, Trial};
use servers::Transport;

fn main() {
    let arguments = Arguments::from_args();
    let trials = trials::<tcp::Loopback>("tcp");
    libtest_mimic::run(&arguments, trials).exit();
}

/// The suite over one transport.
fn trials<T: Transport + 'static>(transport: &str) -> Vec<Trial> {
    suite::cases::<T>()
        .into_iter()
        .map(|(case, run)| {
            Trial::test(format!("{transport}::{case}"), move || {
                run();
                Ok(())
            })
        })
        .collect()
}

//! One suite for all transports: what a [`weir_fabric::Fabric`] does, whatever carries it.
//!
//! | module | subject |
//! | --- | --- |
//! | `suite` | the cases |
//! | `servers` | what they are written in, and what a transport must give: `Transport` |
//! | `tcp` | over loopback |
//! | `sim` | in one thread |
//!
//! Another transport implements `Transport` in a module of its own and gets a line in `main`.

mod servers;
mod sim;
mod suite;
mod tcp;

use libtest_mimic::{Arguments, Trial};
use servers::Transport;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = trials::<tcp::Loopback>("tcp");
    trials.extend(self::trials::<sim::Simulated>("sim"));
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

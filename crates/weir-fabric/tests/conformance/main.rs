//! One suite for all transports: the behaviour of a [`weir_fabric::Fabric`], whatever carries it.
//!
//! | module | subject |
//! | --- | --- |
//! | `suite` | the cases |
//! | `servers` | the servers that the cases run on, and the `Transport` trait |
//! | `tcp` | over loopback, the sockets served by a thread |
//! | `driven` | the same, the sockets served by the caller |
//! | `libfabric` | over its provider `tcp;ofi_rxm`, with and without remote reads |
//! | `relay` | broken connections for TCP |
//! | `sim` | in one thread |
//!
//! Another transport implements `Transport` in a module of its own and gets a line in `main`.

mod driven;
mod libfabric;
mod relay;
mod servers;
mod sim;
mod suite;
mod tcp;

use libtest_mimic::{Arguments, Trial};
use servers::Transport;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = trials::<tcp::Loopback>("tcp");
    trials.extend(self::trials::<driven::Polled>("tcp-driven"));
    trials.extend(self::trials::<sim::Simulated>("sim"));
    let mut over_libfabric = self::trials::<libfabric::Reading>("libfabric");
    over_libfabric.extend(self::trials::<libfabric::Messages>("libfabric-messages"));
    if let Err(why) = libfabric::usable() {
        weir_cluster::skip("the suite over libfabric", &why);
        let ignored = over_libfabric.into_iter();
        over_libfabric = ignored.map(|trial| trial.with_ignored_flag(true)).collect();
    }
    trials.extend(over_libfabric);
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

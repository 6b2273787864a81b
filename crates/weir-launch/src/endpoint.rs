//! The endpoint of libfabric of a server, and the choice between libfabric and TCP.
//!
//! Each server opens one if it is to, and tells its name with its address. The roster has all
//! names; where one is missing all use TCP, since each must reach each.

use std::net::{IpAddr, SocketAddr};

use weir_config::settings::Fabric;
use weir_config::{Provider, Transport};
use weir_core::roster::{Endpoint, EndpointName};
use weir_fabric::ofi::{find, BoundEndpoint, EndpointOptions};

/// The outcome of opening libfabric at a server.
#[derive(Debug)]
pub enum Opened {
    /// It is not to be used.
    Unwanted,
    /// Here it is.
    Bound(BoundEndpoint),
    /// It cannot be used: one line says why.
    Unusable(String),
}

impl Opened {
    /// The endpoint, as the others are told.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let Opened::Bound(bound) = self else {
            return None;
        };
        Some(Endpoint {
            provider: bound.provider().to_owned(),
            name: EndpointName(bound.name().to_vec()),
        })
    }
}

/// Opens an endpoint of this node if `fabric` says so.
pub fn open(fabric: &Fabric, address: IpAddr) -> Opened {
    match fabric.transport {
        Transport::Tcp => return Opened::Unwanted,
        Transport::Libfabric => {}
        Transport::Auto => match find() {
            Ok(found) if found.is_fast() => {}
            Ok(_) => return Opened::Unusable(NOTHING_FASTER.to_owned()),
            Err(why) => return Opened::Unusable(why.to_string()),
        },
    }
    let provider = match &fabric.provider {
        Provider::Auto => None,
        Provider::Named(name) => Some(name.clone()),
    };
    let choice = EndpointOptions {
        provider,
        source: SocketAddr::new(address, 0),
        reads: true,
    };
    match BoundEndpoint::open(&choice) {
        Ok(bound) => Opened::Bound(bound),
        Err(why) => Opened::Unusable(why.to_string()),
    }
}

/// Why `auto` leaves libfabric alone.
pub const NOTHING_FASTER: &str = "no provider here is faster than TCP";

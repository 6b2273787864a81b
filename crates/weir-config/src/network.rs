//! Settings of the network and of access to other nodes.

use std::net::IpAddr;

use serde::Serialize;

use crate::environment::Environment;
use crate::types::{quoted, InvalidValue, Setting};

/// The address that servers use among each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricAddress {
    /// The address of the node's name, else the first that is not a loopback.
    Auto,
    /// The first of an interface.
    Interface(String),
    /// The first within a network: its address and prefix length.
    Network(IpAddr, u8),
}

impl Setting for FabricAddress {
    const SHAPE: &'static str =
        "\"auto\", an interface (\"ib0\"), an address or a network (\"10.1.0.0/16\")";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(address, bits)| (address, Some(bits)));
        if let Ok(address) = address.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(most), str::parse::<u8>);
            return match bits {
                Ok(bits) if bits <= most => Ok(Self::Network(address, bits)),
                _ => Err(format!("a network has at most {most} bits").into()),
            };
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_@:".contains(c);
        // IFNAMSIZ is 16 with the closing zero: netdevice(7).
        if text.is_empty() || text.len() > 15 || !text.chars().all(allowed) {
            return Err(format!("expected {}", Self::SHAPE).into());
        }
        Ok(Self::Interface(text.to_owned()))
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Interface(name) => quoted(name),
            Self::Network(address, bits) => quoted(&format!("{address}/{bits}")),
        }
    }
}

/// A provider of libfabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// The best usable one.
    Auto,
    /// The provider with this name.
    Named(String),
}

impl Setting for Provider {
    const SHAPE: &'static str = "\"auto\" or a provider's name (\"cxi\", \"tcp;ofi_rxm\")";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-;".contains(c);
        match text {
            "auto" => Ok(Self::Auto),
            name if (1..=64).contains(&name.len()) && name.chars().all(allowed) => {
                Ok(Self::Named(name.to_owned()))
            }
            _ => Err(format!("expected {}", Self::SHAPE).into()),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Named(name) => quoted(name),
        }
    }
}

/// The ports that a server may listen on, both ends included; 0 and 0 for any free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl Setting for Ports {
    const SHAPE: &'static str = "\"any\", a port or a range (\"40000-40999\")";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        if text == "any" || text == "0" {
            return Ok(Self { first: 0, last: 0 });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(format!("expected {}", Self::SHAPE).into()),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self { first: 0, .. } => quoted("any"),
            Self { first, last } if first == last => quoted(&first.to_string()),
            Self { first, last } => quoted(&format!("{first}-{last}")),
        }
    }
}

/// A command and its first arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CommandWords(pub Vec<String>);

impl Setting for CommandWords {
    const SHAPE: &'static str = "a command and options, with spaces between";

    fn from_text(text: &str, _: &Environment) -> Result<Self, InvalidValue> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(format!("expected {}", Self::SHAPE).into());
        }
        Ok(Self(words))
    }

    fn to_toml(&self) -> String {
        quoted(&self.0.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Setting>(text: &str) -> Option<T> {
        T::from_text(text, &Environment::default()).ok()
    }

    #[test]
    fn addresses_interfaces_and_networks_are_told_apart() {
        let network = |text: &str, bits| Some(FabricAddress::Network(text.parse().unwrap(), bits));
        assert_eq!(read("auto"), Some(FabricAddress::Auto));
        assert_eq!(read("ib0"), Some(FabricAddress::Interface("ib0".into())));
        assert_eq!(read("10.1.0.0/16"), network("10.1.0.0", 16));
        assert_eq!(read("10.1.2.3"), network("10.1.2.3", 32));
        assert_eq!(read("fd00::/8"), network("fd00::", 8));
        for bad in ["", "10.1.0.0/33", "10.1.0.0/x", "a b", "much-too-long-name"] {
            assert_eq!(read::<FabricAddress>(bad), None, "{bad}");
        }
    }

    #[test]
    fn providers_are_named_as_libfabric_does() {
        let named = Provider::Named("tcp;ofi_rxm".into());
        assert_eq!(read("tcp;ofi_rxm"), Some(named));
        assert_eq!(read("auto"), Some(Provider::Auto));
        for bad in ["", "a b", "tcp,cxi", &"x".repeat(65)] {
            assert_eq!(read::<Provider>(bad), None, "{bad}");
        }
    }

    #[test]
    fn ports_are_a_range_that_reads_back() {
        assert_eq!(read("any"), Some(Ports { first: 0, last: 0 }));
        let range = Ports {
            first: 4000,
            last: 4999,
        };
        assert_eq!(read("4000-4999"), Some(range));
        assert_eq!(range.to_toml(), "\"4000-4999\"");
        for bad in ["", "5-4", "0-4", "70000", "x"] {
            assert_eq!(read::<Ports>(bad), None, "{bad}");
        }
    }
}

//! Who is in an instance: its id, its secret, and which server is where.
//!
//! Made once, by who starts the instance, when every server has bound its address; the same on
//! every node from then on. A server that is started again keeps its rank.
//!
//! Invariants of a [`Roster`], also of one that was read from a file or the network:
//! - ranks are 0 to n - 1 in order, and n is 1 to [`MEMBERS_MOST`];
//! - a host's name is 1 to [`HOST_BYTES_MOST`] letters, digits and `.-_:`;
//! - every address can be connected to, and no two are the same.
//!
//! Left out: how it travels, and files (the command's business; JSON there, any serde format
//! here). A [`Secret`] is not part of it.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::types::Rank;

/// The most servers of an instance.
pub const MEMBERS_MOST: usize = 16_384;

/// The longest name of a host: RFC 1035.
pub const HOST_BYTES_MOST: usize = 253;

/// Why a roster is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// None, or too many.
    #[error("{0} servers: an instance has 1 to {MEMBERS_MOST}")]
    Count(usize),
    /// A member stands at another's place.
    #[error("rank {found} where {expected} belongs")]
    Order {
        /// The place.
        expected: usize,
        /// What was there.
        found: u16,
    },
    /// Something that is no name of a host.
    #[error("server {0} has no valid host name")]
    Host(u16),
    /// An address nobody can connect to: port 0, or no address in particular.
    #[error("server {rank} cannot be reached at {address}")]
    Address {
        /// Whose.
        rank: u16,
        /// Which.
        address: SocketAddr,
    },
    /// Two servers of one address.
    #[error("two servers have the address {0}")]
    Doubled(SocketAddr),
    /// Not 32 or 64 hexadecimal digits.
    #[error("expected {0} hexadecimal digits")]
    Digits(usize),
}

/// The random name of one life of an instance: 128 bits, 32 hexadecimal digits in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct InstanceId(pub [u8; 16]);

/// What the servers of an instance prove to know, and nobody else may: 256 random bits. Never on
/// a command line, in an environment or a log: it is shown as `Secret(..)`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Secret([u8; 32]);

impl Secret {
    /// Of random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the key of a MAC.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for InstanceId {
    type Err = RosterError;

    fn from_str(text: &str) -> Result<Self, RosterError> {
        unhex(text).map(Self)
    }
}

impl From<InstanceId> for String {
    fn from(id: InstanceId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for InstanceId {
    type Error = RosterError;

    fn try_from(text: String) -> Result<Self, RosterError> {
        text.parse()
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> String {
        hex(&secret.0)
    }
}

impl TryFrom<String> for Secret {
    type Error = RosterError;

    fn try_from(text: String) -> Result<Self, RosterError> {
        unhex(&text).map(Self)
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).expect("below 16");
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn unhex<const N: usize>(text: &str) -> Result<[u8; N], RosterError> {
    let refused = RosterError::Digits(2 * N);
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(refused);
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |i: usize| char::from(pair[i]).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(refused);
        };
        *byte = u8::try_from(high << 4 | low).unwrap_or_default();
    }
    Ok(bytes)
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: Rank,
    /// The name by which the batch system or the user knows its node.
    pub host: String,
    /// Where other servers reach it.
    pub address: SocketAddr,
}

/// The servers of an instance, by rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Roster {
    instance: InstanceId,
    members: Vec<Member>,
}

/// As it arrives.
#[derive(Deserialize)]
struct Unchecked {
    instance: InstanceId,
    members: Vec<Member>,
}

impl TryFrom<Unchecked> for Roster {
    type Error = RosterError;

    fn try_from(found: Unchecked) -> Result<Self, RosterError> {
        Self::new(found.instance, found.members)
    }
}

impl Roster {
    /// Of members in the order of their ranks.
    pub fn new(instance: InstanceId, members: Vec<Member>) -> Result<Self, RosterError> {
        if members.is_empty() || members.len() > MEMBERS_MOST {
            return Err(RosterError::Count(members.len()));
        }
        let mut addresses = HashSet::with_capacity(members.len());
        for (expected, member) in members.iter().enumerate() {
            member.check(expected)?;
            if !addresses.insert(member.address) {
                return Err(RosterError::Doubled(member.address));
            }
        }
        Ok(Self { instance, members })
    }

    /// Which life of which instance.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// All, by rank.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// One, if there is one of that rank.
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.members.get(usize::from(rank.0))
    }

    /// How many servers.
    pub fn servers(&self) -> u16 {
        u16::try_from(self.members.len()).expect("at most MEMBERS_MOST")
    }
}

impl Member {
    fn check(&self, expected: usize) -> Result<(), RosterError> {
        let rank = self.rank.0;
        if usize::from(rank) != expected {
            return Err(RosterError::Order {
                expected,
                found: rank,
            });
        }
        if !is_host(&self.host) {
            return Err(RosterError::Host(rank));
        }
        if self.address.port() == 0 || self.address.ip().is_unspecified() {
            return Err(RosterError::Address {
                rank,
                address: self.address,
            });
        }
        Ok(())
    }
}

/// Whether `text` can be the name or address of a host. What begins with `-` would be an option
/// of the program that is to reach it.
pub fn is_host(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    (1..=HOST_BYTES_MOST).contains(&text.len())
        && text.chars().all(allowed)
        && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u16, host: &str, address: &str) -> Member {
        Member {
            rank: Rank(rank),
            host: host.into(),
            address: address.parse().unwrap(),
        }
    }

    fn roster(members: Vec<Member>) -> Result<Roster, RosterError> {
        Roster::new(InstanceId([7; 16]), members)
    }

    #[test]
    fn a_roster_survives_any_format_and_is_checked_on_the_way() {
        let two = [
            member(0, "a-0", "10.0.0.1:4000"),
            member(1, "a-1", "[fe80::1]:4000"),
        ];
        let good = roster(two.to_vec()).unwrap();
        let bytes = postcard::to_stdvec(&good).unwrap();
        assert_eq!(postcard::from_bytes::<Roster>(&bytes).unwrap(), good);
        let bad = postcard::to_stdvec(&(InstanceId([7; 16]), vec![two[1].clone()])).unwrap();
        assert!(postcard::from_bytes::<Roster>(&bad).is_err());
        assert_eq!(good.member(Rank(1)), Some(&two[1]));
        assert_eq!(good.member(Rank(2)), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = || member(0, "a", "10.0.0.1:1");
        assert_eq!(roster(vec![]), Err(RosterError::Count(0)));
        assert_eq!(
            roster(vec![good(), good()]).unwrap_err(),
            RosterError::Order {
                expected: 1,
                found: 0
            }
        );
        for host in ["", "-oProxyCommand=x", "a b", "a;b", &"x".repeat(254)] {
            let refused = roster(vec![member(0, host, "10.0.0.1:1")]);
            assert_eq!(refused, Err(RosterError::Host(0)), "{host}");
        }
        for address in ["10.0.0.1:0", "0.0.0.0:1", "[::]:1"] {
            let refused = roster(vec![member(0, "a", address)]).unwrap_err();
            assert!(matches!(refused, RosterError::Address { .. }), "{address}");
        }
        let doubled = roster(vec![good(), member(1, "b", "10.0.0.1:1")]);
        assert!(matches!(doubled, Err(RosterError::Doubled(_))));
    }

    #[test]
    fn ids_and_secrets_are_hexadecimal_and_secrets_not_shown() {
        let id = InstanceId([0xA5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("a5".parse::<InstanceId>().is_err());
        assert!("zz".repeat(16).parse::<InstanceId>().is_err());
        assert!("\u{e9}".repeat(16).parse::<InstanceId>().is_err());
        let secret = Secret::new([0xA5; 32]);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(Secret::try_from(String::from(secret.clone())), Ok(secret));
    }
}

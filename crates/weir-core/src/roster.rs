//! The servers of an instance: its id, its secret, and the address of each server.
//!
//! The program that starts the instance makes the roster once, when every server has bound its
//! address; it is the same on every node from then on. A server that is started again keeps its
//! rank.
//!
//! Invariants of a [`Roster`], also of one that was read from a file or the network:
//! - ranks are 0 to n - 1 in order, and n is 1 to [`MEMBERS_MOST`];
//! - a host's name is 1 to [`HOST_BYTES_MOST`] letters, digits and `.-_:`;
//! - every address can be connected to, and no two are the same;
//! - a libfabric endpoint has a provider and a name of 1 to [`ENDPOINT_BYTES_MOST`] bytes each.
//!
//! Left out: its transport, and files (the command's business; JSON there, any serde format here).
//! A [`Secret`] is not part of it.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};

use crate::types::Rank;

/// The most servers of an instance.
pub const MEMBERS_MOST: usize = 16_384;

/// The longest name of a libfabric endpoint, and of a provider, bytes.
pub const ENDPOINT_BYTES_MOST: usize = 512;

/// The longest name of a host: RFC 1035.
pub const HOST_BYTES_MOST: usize = 253;

/// The reasons for refusing a roster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// There are no servers, or too many.
    #[error("{0} servers: an instance has 1 to {MEMBERS_MOST}")]
    Count(usize),
    /// A member is at another's position.
    #[error("rank {found} where {expected} belongs")]
    Order {
        /// The position.
        expected: usize,
        /// The rank that was there.
        found: u16,
    },
    /// A host name that is not valid.
    #[error("server {0} has no valid host name")]
    Host(u16),
    /// An address that cannot be connected to: port 0, or no address in particular.
    #[error("server {rank} cannot be reached at {address}")]
    Address {
        /// The server that has it.
        rank: u16,
        /// The address.
        address: SocketAddr,
    },
    /// Two servers have one address.
    #[error("two servers have the address {0}")]
    DuplicateAddress(SocketAddr),
    /// A libfabric endpoint without a provider, or with a name that is too long.
    #[error("server {0} has no valid libfabric endpoint")]
    Endpoint(u16),
    /// A text without the expected number of hexadecimal digits.
    #[error("expected {0} hexadecimal digits")]
    Digits(usize),
}

/// The random name of one life of an instance: 128 bits, 32 hexadecimal digits in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct InstanceId(pub [u8; 16]);

/// The secret by which the servers of an instance authenticate each other: 256 random bits. It is
/// never on a command line, in an environment or a log; its `Debug` form is `Secret(..)`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes a secret of random bytes.
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
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl FromStr for InstanceId {
    type Err = RosterError;

    fn from_str(text: &str) -> Result<Self, RosterError> {
        decode_digits(text).map(Self)
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
        HEXLOWER.encode(&secret.0)
    }
}

impl TryFrom<String> for Secret {
    type Error = RosterError;

    fn try_from(text: String) -> Result<Self, RosterError> {
        decode_digits(&text).map(Self)
    }
}

fn decode_digits<const N: usize>(text: &str) -> Result<[u8; N], RosterError> {
    let bytes = decode_hex(text).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(RosterError::Digits(2 * N))
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}

/// The address of a server over libfabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its provider.
    pub provider: String,
    /// Its name at that provider.
    pub name: EndpointName,
}

/// The name of a libfabric endpoint: bytes, hexadecimal digits in text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EndpointName(pub Vec<u8>);

impl From<EndpointName> for String {
    fn from(name: EndpointName) -> String {
        HEXLOWER.encode(&name.0)
    }
}

impl TryFrom<String> for EndpointName {
    type Error = RosterError;

    fn try_from(text: String) -> Result<Self, RosterError> {
        let bytes = decode_hex(&text).ok_or(RosterError::Digits(text.len()))?;
        Ok(EndpointName(bytes))
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its rank.
    pub rank: Rank,
    /// The name by which the batch system or the user knows its node.
    pub host: String,
    /// Its address for other servers.
    pub address: SocketAddr,
    /// Its libfabric endpoint, if it has one.
    #[serde(default)]
    pub endpoint: Option<Endpoint>,
    /// True if its node runs no program of the job, and is there to move files.
    #[serde(default)]
    pub is_mover: bool,
}

/// The servers of an instance, by rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedRoster")]
pub struct Roster {
    instance: InstanceId,
    members: Vec<Member>,
}

/// A roster that is not checked yet.
#[derive(Deserialize)]
struct UncheckedRoster {
    instance: InstanceId,
    members: Vec<Member>,
}

impl TryFrom<UncheckedRoster> for Roster {
    type Error = RosterError;

    fn try_from(found: UncheckedRoster) -> Result<Self, RosterError> {
        Self::new(found.instance, found.members)
    }
}

impl Roster {
    /// Makes a roster of members in the order of their ranks.
    pub fn new(instance: InstanceId, members: Vec<Member>) -> Result<Self, RosterError> {
        if members.is_empty() || members.len() > MEMBERS_MOST {
            return Err(RosterError::Count(members.len()));
        }
        let mut addresses = HashSet::with_capacity(members.len());
        for (expected, member) in members.iter().enumerate() {
            member.check(expected)?;
            if !addresses.insert(member.address) {
                return Err(RosterError::DuplicateAddress(member.address));
            }
        }
        Ok(Self { instance, members })
    }

    /// Returns the id of this life of the instance.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Returns all members, by rank.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the member of that rank, if there is one.
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.members.get(usize::from(rank.0))
    }

    /// Returns the endpoints' names by rank, if all servers have one of the same provider; else the
    /// first server without one.
    pub fn endpoints(&self) -> Result<Vec<Vec<u8>>, Rank> {
        let provider = |member: &Member| member.endpoint.as_ref().map(|e| e.provider.clone());
        let common = self.members.first().and_then(provider);
        let name = |member: &Member| {
            let endpoint = member.endpoint.as_ref();
            let same = endpoint.filter(|endpoint| Some(&endpoint.provider) == common.as_ref());
            same.map(|same| same.name.0.clone()).ok_or(member.rank)
        };
        self.members.iter().map(name).collect()
    }

    /// Returns the number of servers.
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
        let fits = |len| (1..=ENDPOINT_BYTES_MOST).contains(&len);
        let good = |e: &Endpoint| fits(e.provider.len()) && fits(e.name.0.len());
        if !self.endpoint.as_ref().is_none_or(good) {
            return Err(RosterError::Endpoint(rank));
        }
        Ok(())
    }
}

/// Returns true if `text` can be the name or address of a host. A text that begins with `-` would
/// be an option of the program that connects to it.
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
            endpoint: None,
            is_mover: false,
        }
    }

    fn reached(member: Member, provider: &str, name: &[u8]) -> Member {
        let (provider, name) = (provider.to_owned(), EndpointName(name.to_vec()));
        let endpoint = Some(Endpoint { provider, name });
        Member { endpoint, ..member }
    }

    #[test]
    fn libfabric_is_for_all_by_one_provider_or_for_none() {
        let two = [member(0, "a", "10.0.0.1:1"), member(1, "b", "10.0.0.2:1")];
        let [a, b] = two.clone();
        assert_eq!(roster(two.to_vec()).unwrap().endpoints(), Err(Rank(0)));
        let one = vec![reached(a.clone(), "tcp", &[1]), b.clone()];
        assert_eq!(roster(one).unwrap().endpoints(), Err(Rank(1)));
        let other = vec![
            reached(a.clone(), "tcp", &[1]),
            reached(b.clone(), "cxi", &[2]),
        ];
        assert_eq!(roster(other).unwrap().endpoints(), Err(Rank(1)));
        let both = vec![
            reached(a.clone(), "cxi", &[1]),
            reached(b, "cxi", &[0xFE, 2]),
        ];
        let both = roster(both).unwrap();
        assert_eq!(both.endpoints(), Ok(vec![vec![1], vec![0xFE, 2]]));
        let bytes = postcard::to_stdvec(&both).unwrap();
        assert_eq!(postcard::from_bytes::<Roster>(&bytes).unwrap(), both);
        for bad in [reached(a.clone(), "", &[1]), reached(a, "cxi", &[7; 513])] {
            assert_eq!(roster(vec![bad]), Err(RosterError::Endpoint(0)));
        }
        assert!(EndpointName::try_from("abc".to_owned()).is_err());
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
    fn invalid_rosters_are_refused() {
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
        assert!(matches!(doubled, Err(RosterError::DuplicateAddress(_))));
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

//! Greetings and proofs, by which each end identifies the other (see [`crate::frame`]).

use mio::Token as Key;
use weir_core::types::Rank;

use super::{ConnectionStage, Dialled, Io, PeerLife};
use crate::conn::ConnectionError;
use crate::frame::{
    proof, FrameKind, Greeting, Malformed, Plane, Role, GREETING_BYTES, PROOF_BYTES, VERSION,
};

impl Io {
    pub(super) fn greeting(&self, to: Rank, plane: Plane) -> Result<Greeting, ConnectionError> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)
            .map_err(|_| ConnectionError::Ended(std::io::ErrorKind::Other.into()))?;
        Ok(Greeting {
            version: VERSION,
            instance: self.me.instance,
            from: self.me.rank,
            to,
            incarnation: self.me.incarnation,
            nonce,
            plane: plane as u32,
        })
    }

    pub(super) fn greet(
        &mut self,
        key: Key,
        to: Rank,
        plane: Plane,
    ) -> Result<(), ConnectionError> {
        let greeting = self.greeting(to, plane)?;
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = ConnectionStage::Greeted(to, plane, greeting);
        }
        self.send_handshake(key, FrameKind::Hello, greeting.encode().to_vec());
        Ok(())
    }

    /// Answers a greeting with a challenge.
    pub(super) fn challenge(&mut self, key: Key, body: &[u8]) -> Result<(), ConnectionError> {
        let theirs = self.decode_greeting(body)?;
        let own = theirs.from == self.me.rank;
        if own || self.address(theirs.from).is_none() || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "for another server");
            return Err(Malformed.into());
        }
        let ours = self.greeting(theirs.from, theirs.plane()?)?;
        let proof = proof(&self.me.secret, Role::Acceptor, &theirs, &ours);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = ConnectionStage::Challenged(theirs, ours);
        }
        let body = [&ours.encode()[..], proof.as_bytes()].concat();
        self.send_handshake(key, FrameKind::Challenge, body);
        Ok(())
    }

    /// Decodes a greeting and checks its version and instance.
    pub(super) fn decode_greeting(&self, body: &[u8]) -> Result<Greeting, ConnectionError> {
        let greeting = body.first_chunk::<GREETING_BYTES>().ok_or(Malformed)?;
        let greeting = Greeting::decode(greeting);
        if greeting.version != VERSION {
            self.refuse(|counters| &mut counters.version, "another version");
            return Err(Malformed.into());
        }
        if greeting.instance != self.me.instance {
            self.refuse(|counters| &mut counters.instance, "another instance");
            return Err(Malformed.into());
        }
        Ok(greeting)
    }

    /// Checks the acceptor's proof, and sends the proof of this end.
    pub(super) fn answer_challenge(
        &mut self,
        key: Key,
        to: Rank,
        plane: Plane,
        ours: &Greeting,
        body: &[u8],
    ) -> Result<(), ConnectionError> {
        let theirs = self.decode_greeting(body)?;
        if theirs.from != to || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "another server answers");
            return Err(Malformed.into());
        }
        self.check_proof(Role::Acceptor, ours, &theirs, &body[GREETING_BYTES..])?;
        let with = PeerLife {
            rank: to,
            incarnation: theirs.incarnation,
        };
        self.admit_life(with)?;
        let proof = proof(&self.me.secret, Role::Dialler, ours, &theirs);
        self.send_handshake(key, FrameKind::Proof, proof.as_bytes().to_vec());
        self.finish_handshake(key, with, plane, Dialled::ByUs);
        Ok(())
    }

    /// Completes a handshake.
    fn finish_handshake(&mut self, key: Key, with: PeerLife, plane: Plane, dialled: Dialled) {
        match plane {
            Plane::Control => self.open(key, with, dialled),
            Plane::Bulk => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    conn.stage = ConnectionStage::Bulk(with.rank, dialled);
                    conn.incoming.admit(false);
                    conn.until = None;
                }
            }
        }
    }

    pub(super) fn check_proof(
        &self,
        role: Role,
        dialler: &Greeting,
        acceptor: &Greeting,
        given: &[u8],
    ) -> Result<(), ConnectionError> {
        let given = given.first_chunk::<PROOF_BYTES>().ok_or(Malformed)?;
        if proof(&self.me.secret, role, dialler, acceptor) != *given {
            self.refuse(|counters| &mut counters.secret, "the secret is wrong");
            return Err(Malformed.into());
        }
        Ok(())
    }

    /// Checks a dialler's proof.
    pub(super) fn accept_proof(
        &mut self,
        key: Key,
        theirs: &Greeting,
        ours: &Greeting,
        body: &[u8],
    ) -> Result<(), ConnectionError> {
        self.check_proof(Role::Dialler, theirs, ours, body)?;
        let with = PeerLife {
            rank: theirs.from,
            incarnation: theirs.incarnation,
        };
        self.admit_life(with)?;
        let plane = theirs.plane()?;
        self.unproven -= 1;
        self.finish_handshake(key, with, plane, Dialled::ByThem);
        Ok(())
    }

    /// Admits one incarnation of a server, and closes connections with former ones.
    fn admit_life(&mut self, with: PeerLife) -> Result<(), ConnectionError> {
        if !self.links.admit(with.rank, with.incarnation) {
            return Err(Malformed.into()); // an incarnation that has ended
        }
        self.close_former_lives(with);
        Ok(())
    }
}

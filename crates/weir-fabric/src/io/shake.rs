//! Who is at the other end: greetings and proofs (see [`crate::frame`]).

use mio::Token as Key;
use weir_core::types::Rank;

use super::{Dialled, Io, Stage};
use crate::conn::Broken;
use crate::frame::{
    proof, Garbage, Greeting, Kind, Plane, Role, GREETING_BYTES, PROOF_BYTES, VERSION,
};

impl Io {
    pub(super) fn greeting(&self, to: Rank, plane: Plane) -> Result<Greeting, Broken> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|_| Broken::Ended(std::io::ErrorKind::Other.into()))?;
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

    pub(super) fn greet(&mut self, key: Key, to: Rank, plane: Plane) -> Result<(), Broken> {
        let greeting = self.greeting(to, plane)?;
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Greeted(to, plane, greeting);
        }
        self.say(key, Kind::Hello, greeting.encode().to_vec());
        Ok(())
    }

    /// A stranger greets: who is it, and whom does it look for?
    pub(super) fn challenge(&mut self, key: Key, body: &[u8]) -> Result<(), Broken> {
        let theirs = self.check(body)?;
        let own = theirs.from == self.me.rank;
        if own || self.address(theirs.from).is_none() || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "for another server");
            return Err(Garbage.into());
        }
        let ours = self.greeting(theirs.from, theirs.plane()?)?;
        let proof = proof(&self.me.secret, Role::Acceptor, &theirs, &ours);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stage = Stage::Challenged(theirs, ours);
        }
        let body = [&ours.encode()[..], proof.as_bytes()].concat();
        self.say(key, Kind::Challenge, body);
        Ok(())
    }

    /// A greeting of this version and instance.
    pub(super) fn check(&self, body: &[u8]) -> Result<Greeting, Broken> {
        let greeting = body.first_chunk::<GREETING_BYTES>().ok_or(Garbage)?;
        let greeting = Greeting::decode(greeting);
        if greeting.version != VERSION {
            self.refuse(|counters| &mut counters.version, "another version");
            return Err(Garbage.into());
        }
        if greeting.instance != self.me.instance {
            self.refuse(|counters| &mut counters.instance, "another instance");
            return Err(Garbage.into());
        }
        Ok(greeting)
    }

    /// Who was dialled proves itself; then we do.
    pub(super) fn prove(
        &mut self,
        key: Key,
        (to, plane): (Rank, Plane),
        ours: &Greeting,
        body: &[u8],
    ) -> Result<(), Broken> {
        let theirs = self.check(body)?;
        if theirs.from != to || theirs.to != self.me.rank {
            self.refuse(|counters| &mut counters.rank, "another server answers");
            return Err(Garbage.into());
        }
        self.check_proof(Role::Acceptor, ours, &theirs, &body[GREETING_BYTES..])?;
        self.meet((to, theirs.incarnation))?;
        let proof = proof(&self.me.secret, Role::Dialler, ours, &theirs);
        self.say(key, Kind::Proof, proof.as_bytes().to_vec());
        self.agree(key, (to, theirs.incarnation), plane, Dialled::ByUs);
        Ok(())
    }

    /// Both ends have proved who they are.
    fn agree(&mut self, key: Key, with: (Rank, u64), plane: Plane, dialled: Dialled) {
        match plane {
            Plane::Control => self.open(key, with, dialled),
            Plane::Bulk => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    conn.stage = Stage::Bulk(with.0, dialled);
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
    ) -> Result<(), Broken> {
        let given = given.first_chunk::<PROOF_BYTES>().ok_or(Garbage)?;
        if proof(&self.me.secret, role, dialler, acceptor) != *given {
            self.refuse(|counters| &mut counters.secret, "the secret is wrong");
            return Err(Garbage.into());
        }
        Ok(())
    }

    /// A dialler proved itself.
    pub(super) fn admit(
        &mut self,
        key: Key,
        theirs: &Greeting,
        ours: &Greeting,
        body: &[u8],
    ) -> Result<(), Broken> {
        self.check_proof(Role::Dialler, theirs, ours, body)?;
        let with = (theirs.from, theirs.incarnation);
        self.meet(with)?;
        let plane = theirs.plane()?;
        self.strangers -= 1;
        self.agree(key, with, plane, Dialled::ByThem);
        Ok(())
    }

    /// A life of a server has proved itself.
    fn meet(&mut self, with: (Rank, u64)) -> Result<(), Broken> {
        if !self.links.admit(with.0, with.1) {
            return Err(Garbage.into()); // a life that has ended
        }
        self.end_others(with);
        Ok(())
    }
}

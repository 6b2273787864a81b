//! Looking for data and holes, as lseek(2) does with SEEK_DATA and SEEK_HOLE.
//!
//! The answer is in the [`Map`](super::map::Map) that reads keep: a program that walks over a
//! fragmented file asks the server once for hundreds of its extents.

use rustix::io::Errno;

use super::host::Host;
use super::vnode::Vnode;

impl Vnode {
    /// The first offset at or behind `offset` that holds data, or with `hole` the first that holds none;
    /// the end of the file is a hole. `None`: the file ends before there is one.
    pub fn seek<H: Host>(&self, host: &H, offset: u64, hole: bool) -> Result<Option<u64>, Errno> {
        self.check()?;
        let mut now = self.moment(host)?;
        if now.state.evicted {
            // The holes of the copy count as data.
            let found = if hole { now.size } else { offset };
            return Ok((offset < now.size).then_some(found));
        }
        let (mut at, mut generation) = (offset, None);
        while at < now.size {
            let mut map = self.map.lock().ok_or(Errno::AGAIN)?;
            let look = self.change(&mut *map, |map| {
                let part = self.know(host, &mut now, map, at, at + 1, at + 1)?;
                let found = match hole {
                    true => Some(part.next_hole(at)),
                    false => part.next_data(at),
                };
                Ok::<_, Errno>((part.known_to(), found))
            });
            let (known_to, found) = look?;
            if generation.is_some_and(|before| before != now.state.generation) {
                // The file has changed since the search began: it begins again.
                drop(map);
                now = self.moment(host)?;
                (at, generation) = (offset, None);
                continue;
            }
            generation = Some(now.state.generation);
            let known = known_to.min(now.size);
            if let Some(found) = found.filter(|found| *found < known) {
                return Ok(Some(found));
            }
            at = known;
        }
        Ok((hole && offset < now.size).then_some(now.size))
    }
}

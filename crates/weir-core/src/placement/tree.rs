//! Trees over servers: the order in which a message for all of them is passed on.

/// The number of servers that one server sends a message to, before these pass it on. A level costs
/// a message there and back, and each message a few microseconds at its sender: by `weir-scale`,
/// 4,000 servers are reached fastest with four to sixteen.
pub const FAN_OUT: u32 = 8;

/// Cuts `items` into at most `fanout` shares that differ by one at most. The first of each share
/// passes the message on to the rest of it in the same way, so that the tree is as low as it can
/// be.
pub fn shares<T>(items: &[T], fanout: u32) -> impl Iterator<Item = &[T]> {
    let shares = items.len().min(fanout.max(1) as usize);
    let (each, more) = match shares {
        0 => (0, 0),
        shares => (items.len() / shares, items.len() % shares),
    };
    (0..shares).map(move |i| {
        let start = i * each + i.min(more);
        &items[start..start + each + usize::from(i < more)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_in_order() {
        let items: Vec<u32> = (0..10).collect();
        let cut: Vec<&[u32]> = shares(&items, 3).collect();
        assert_eq!(cut, [&items[..4], &items[4..7], &items[7..]]);
        assert_eq!(shares(&items, 100).count(), 10);
        assert_eq!(shares::<u32>(&[], 3).count(), 0);
    }
}

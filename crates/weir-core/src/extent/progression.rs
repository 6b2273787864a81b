//! The algebra of runs: the rest of a run when another is taken away.
//!
//! Intuition: take a comb away from a ruler, and the gaps between the teeth remain, which are a
//! comb; take a ruler away from a comb, and two shorter combs remain; two combs of one stride meet
//! in the same way at every tooth. So the usual cases give a handful of runs, for any number of
//! pieces:
//!
//! | from | is taken | remain at most |
//! | --- | --- | --- |
//! | anything | a contiguous range | 2 runs and 2 cut pieces |
//! | a contiguous run | a progression | head, gaps, tail |
//! | a progression | one of the same stride | 5 stretches of pieces that are cut alike, 3 runs each |
//! | a progression | one whose stride is in a small ratio to its own | as above, once a residue class |
//! | a progression | one of another stride | the untouched stretches, and the pieces it really meets |
//!
//! All functions take runs as [`Run::checked`] leaves them and report parts of the first argument,
//! with their sources.

use super::run::{Run, Source};

/// The position of a part with respect to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Before,
    Inside,
    After,
}

/// At most this many pairs of residue classes are formed of two progressions of different strides.
const MAX_CLASSES: u64 = 64;

/// Splits `a` by the file range `[start, end)`; parts come in the order of the file.
pub(super) fn cut_by_range(a: &Run, start: u64, end: u64, out: &mut dyn FnMut(Place, Run)) {
    debug_assert!(start < end, "an empty range cuts nothing");
    let mut low = a.ending_after(start);
    let mut high = a.starting_from(end);
    let behind = high;
    if low > 0 {
        out(Place::Before, a.sub(0, low));
    }
    if low < high && (a.start_of(low) < start || a.start_of(low) + a.length > end) {
        split_piece(&a.sub(low, 1), start, end, out);
        low += 1;
    }
    let overhang = low < high && a.start_of(high - 1) + a.length > end;
    if overhang {
        high -= 1;
    }
    if low < high {
        out(Place::Inside, a.sub(low, high - low));
    }
    if overhang {
        split_piece(&a.sub(high, 1), start, end, out);
    }
    if behind < a.count {
        out(Place::After, a.sub(behind, a.count - behind));
    }
}

/// Splits one piece that meets `[start, end)`.
fn split_piece(piece: &Run, start: u64, end: u64, out: &mut dyn FnMut(Place, Run)) {
    let head = start.saturating_sub(piece.offset);
    let tail = piece.end().saturating_sub(end);
    if head > 0 {
        out(Place::Before, piece.within(0, head));
    }
    out(
        Place::Inside,
        piece.within(head, piece.length - head - tail),
    );
    if tail > 0 {
        out(Place::After, piece.within(piece.length - tail, tail));
    }
}

/// Splits `a` into the parts inside `b` (reported with `true`) and those outside.
pub(super) fn cut(a: &Run, b: &Run, out: &mut dyn FnMut(bool, Run)) {
    if a.end() <= b.offset || b.end() <= a.offset {
        out(false, *a);
    } else if b.count == 1 || b.stride == b.length {
        cut_by_range(a, b.offset, b.end(), &mut |place, part| {
            out(place == Place::Inside, part);
        });
    } else if a.count == 1 {
        cut_contiguous(a, b, out);
    } else if a.stride == b.stride {
        cut_aligned(a, b, out);
    } else {
        cut_unaligned(a, b, out);
    }
}

/// `a` is contiguous, `b` is a progression with gaps.
fn cut_contiguous(a: &Run, b: &Run, out: &mut dyn FnMut(bool, Run)) {
    let mut low = b.ending_after(a.offset);
    let mut high = b.starting_from(a.end());
    let mut at = a.offset;
    let mut upto = |inside: bool, end: u64| {
        if at < end {
            out(inside, a.within(at - a.offset, end - at));
        }
        at = at.max(end);
    };
    if low < high && b.start_of(low) < a.offset {
        upto(true, a.end().min(b.start_of(low) + b.length));
        low += 1;
    }
    let overhang = low < high && b.start_of(high - 1) + b.length > a.end();
    if overhang {
        high -= 1;
    }
    if low < high {
        let (teeth, first) = (high - low, b.start_of(low));
        upto(false, first);
        if teeth == 1 {
            upto(true, first + b.length);
        } else {
            at = b.start_of(high - 1) + b.length;
            out(true, a.comb(first, b.length, b.stride, teeth));
            out(
                false,
                a.comb(first + b.length, b.stride - b.length, b.stride, teeth - 1),
            );
        }
    }
    let mut upto = |inside: bool, end: u64| {
        if at < end {
            out(inside, a.within(at - a.offset, end - at));
        }
        at = at.max(end);
    };
    if overhang {
        upto(false, b.start_of(high));
        upto(true, a.end());
    }
    upto(false, a.end());
}

/// Two progressions of one stride. In every slot of `stride` bytes that begins with a piece of `a`,
/// `b` covers the same bytes, while both last: those behind `shift`, and, of the piece before,
/// those that reach over into the slot.
fn cut_aligned(a: &Run, b: &Run, out: &mut dyn FnMut(bool, Run)) {
    let stride = a.stride;
    // Piece j of b starts in slot j + ahead - behind of a, `shift` bytes into it.
    let (ahead, behind, shift) = if b.offset >= a.offset {
        let distance = b.offset - a.offset;
        (distance / stride, 0, distance % stride)
    } else {
        let distance = a.offset - b.offset;
        let slots = distance.div_ceil(stride);
        (0, slots, slots * stride - distance)
    };
    let slot = |piece: u64| (piece + ahead).saturating_sub(behind).min(a.count);
    // Slots in which a piece of b starts, and slots into which the one before may reach over.
    let carried = (shift + b.length).saturating_sub(stride).min(a.length);
    let starting = if shift < a.length {
        slot(0)..slot(b.count)
    } else {
        0..0
    };
    let reaching = if carried > 0 {
        slot(1)..slot(b.count + 1)
    } else {
        0..0
    };
    let mut bounds = [
        0,
        starting.start,
        starting.end,
        reaching.start,
        reaching.end,
        a.count,
    ];
    bounds.sort_unstable();
    for pair in bounds.windows(2).filter(|pair| pair[0] < pair[1]) {
        let part = a.sub(pair[0], pair[1] - pair[0]);
        let low = if reaching.contains(&pair[0]) {
            carried
        } else {
            0
        };
        let (from, to) = if starting.contains(&pair[0]) {
            (shift.min(a.length), (shift + b.length).min(a.length))
        } else {
            (a.length, a.length)
        };
        for (inside, from, to) in [
            (true, 0, low),
            (false, low, from),
            (true, from, to),
            (false, to, a.length),
        ] {
            if from < to {
                out(inside, part.within(from, to - from));
            }
        }
    }
}

/// Two progressions of different strides.
fn cut_unaligned(a: &Run, b: &Run, out: &mut dyn FnMut(bool, Run)) {
    if first_common(a, b).is_none() {
        out(false, *a);
        return;
    }
    let common = gcd(a.stride, b.stride);
    let (classes_a, classes_b) = (b.stride / common, a.stride / common);
    let few = classes_a
        .checked_mul(classes_b)
        .is_some_and(|pairs| pairs <= MAX_CLASSES);
    let (low, high) = (a.ending_after(b.offset), a.starting_from(b.end()));
    if !few || high - low < 4 * classes_a {
        cut_piecewise(a, b, out);
    } else if a.count - (high - low) > 2 * classes_a {
        // The parts before and behind `b` stay in one, instead of one a class.
        if low > 0 {
            out(false, a.sub(0, low));
        }
        cut_by_classes(&a.sub(low, high - low), b, classes_a, classes_b, out);
        if high < a.count {
            out(false, a.sub(high, a.count - high));
        }
    } else {
        cut_by_classes(a, b, classes_a, classes_b, out);
    }
}

/// Takes both apart into progressions of one common stride, `classes` of each, so that they meet regularly.
fn cut_by_classes(
    a: &Run,
    b: &Run,
    classes_a: u64,
    classes_b: u64,
    out: &mut dyn FnMut(bool, Run),
) {
    let mut outside = Vec::new();
    for first in 0..classes_a {
        let mut pending = vec![a.thinned(first, classes_a)];
        for other in 0..classes_b.min(b.count) {
            let class = b.thinned(other, classes_b);
            for part in std::mem::take(&mut pending) {
                cut(&part, &class, &mut |inside, rest| {
                    if inside {
                        out(true, rest);
                    } else {
                        pending.push(rest);
                    }
                });
            }
        }
        outside.append(&mut pending);
    }
    for part in outside {
        out(false, part);
    }
}

/// Takes apart only the pieces that `b` meets; the cost is proportional to their number.
fn cut_piecewise(a: &Run, b: &Run, out: &mut dyn FnMut(bool, Run)) {
    let mut clean = 0;
    while let Some(index) = first_meeting(a, b, clean) {
        if clean < index {
            out(false, a.sub(clean, index - clean));
        }
        cut_contiguous(&a.sub(index, 1), b, out);
        clean = index + 1;
    }
    if clean < a.count {
        out(false, a.sub(clean, a.count - clean));
    }
}

/// Returns the first file offset that lies in both.
pub(super) fn first_common(a: &Run, b: &Run) -> Option<u64> {
    let at = a.start_of(first_meeting(a, b, 0)?);
    Some(at.max(b.start_of(b.ending_after(at))))
}

/// Returns the first piece of `a`, from piece `from` on, that shares a byte with `b`; in
/// logarithmic time.
fn first_meeting(a: &Run, b: &Run, from: u64) -> Option<u64> {
    let from = from.max(a.ending_after(b.offset));
    let mut index = from;
    if a.count > 1 && b.count > 1 && from < a.count {
        // Piece i and a piece of `b` (were it without end) meet where the last byte of piece i is
        // less than `reach` behind the start of a piece of `b`.
        let last = a.start_of(from) + a.length - 1 - b.offset;
        let (reach, behind) = (a.length + b.length - 1, last % b.stride);
        if behind >= reach {
            let low = b.stride - behind;
            index = from.checked_add(first_in_range(a.stride, b.stride, low, low + reach - 1)?)?;
        }
    }
    let tooth = b.ending_after(a.start_of(index.min(a.count - 1)));
    let meets =
        index < a.count && tooth < b.count && b.start_of(tooth) < a.start_of(index) + a.length;
    meets.then_some(index)
}

/// The smallest `k` with `low <= step * k mod modulus <= high`, for `0 < low <= high < modulus`.
///
/// Either a multiple of `step` lies in the range before the first wrap, or the number of wraps is
/// asked for, which is the same question modulo `step`: Euclid's algorithm with a range.
fn first_in_range(step: u64, modulus: u64, low: u64, high: u64) -> Option<u64> {
    let step = step % modulus;
    if step == 0 {
        return None;
    }
    let k = low.div_ceil(step);
    if k.checked_mul(step).is_some_and(|reached| reached <= high) {
        return Some(k);
    }
    // No multiple of `step` is in the range, so that both of these are positive, and in order.
    let wraps = first_in_range(modulus, step, step - high % step, step - low % step)?;
    let reached = u128::from(low) + u128::from(modulus) * u128::from(wraps);
    u64::try_from(reached.div_ceil(u128::from(step))).ok()
}

/// Returns true if two runs put every byte that they share at the same position of the log, as
/// states of one growing record do.
///
/// Both are linear, so that agreeing at one byte and in the slope is agreeing everywhere.
pub(super) fn same_bytes(a: &Run, b: &Run) -> bool {
    let (
        Source::Log { slab, rank, .. },
        Source::Log {
            slab: other_slab,
            rank: other_rank,
            ..
        },
    ) = (a.source, b.source)
    else {
        return a.source == Source::Hole && b.source == Source::Hole;
    };
    let Some(at) = first_common(a, b) else {
        return true;
    };
    (rank, slab) == (other_rank, other_slab)
        && a.source_at(at) == b.source_at(at)
        && same_slope(a, b)
}

fn same_slope(a: &Run, b: &Run) -> bool {
    let (few, many) = if a.count <= b.count { (a, b) } else { (b, a) };
    if few.count == 1 {
        let pieces = many.starting_from(few.end()) - many.ending_after(few.offset);
        return pieces == 1 || many.source.pos_stride() == many.stride;
    }
    let (wide, narrow) = if a.stride >= b.stride { (a, b) } else { (b, a) };
    let ratio = wide.stride / narrow.stride;
    wide.stride % narrow.stride == 0
        && narrow.source.pos_stride().checked_mul(ratio) == Some(wide.source.pos_stride())
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn comb(offset: u64, length: u64, gap: u64, count: u64) -> Run {
        let source = Source::Log {
            rank: 0,
            slab: 0,
            pos: 0,
            pos_stride: length,
        };
        Run {
            offset,
            length,
            stride: length + gap,
            count,
            stamp: 0,
            source,
        }
        .checked()
        .unwrap()
    }

    proptest! {
        #[test]
        fn the_first_multiple_in_a_range(step in 0_u64..200, modulus in 2_u64..200, a: u64, b: u64) {
            let (a, b) = (a % (modulus - 1) + 1, b % (modulus - 1) + 1);
            let (low, high) = (a.min(b), a.max(b));
            let found = (0..modulus).find(|k| (low..=high).contains(&(step * k % modulus)));
            prop_assert_eq!(first_in_range(step, modulus, low, high), found);
        }

        #[test]
        fn runs_meet_where_their_bytes_do(
            a in (0_u64..300, 1_u64..20, 0_u64..50, 1_u64..20).prop_map(|(o, l, g, c)| comb(o, l, g, c)),
            b in (0_u64..300, 1_u64..20, 0_u64..50, 1_u64..20).prop_map(|(o, l, g, c)| comb(o, l, g, c)),
            from in 0_u64..20,
        ) {
            let common = (0..2000).find(|at| a.source_at(*at).is_some() && b.source_at(*at).is_some());
            prop_assert_eq!(first_common(&a, &b), common);
            let meets = |index: &u64| first_common(&a.sub(*index, 1), &b).is_some();
            prop_assert_eq!(first_meeting(&a, &b, from), (from..a.count).find(meets));
        }
    }

    #[test]
    fn progressions_that_never_meet_are_told_apart_at_once() {
        let a = comb(0, 1, (1 << 20) - 1, 1 << 40);
        let b = comb(1, 1, 3 * (1 << 20) - 1, 1 << 40);
        assert_eq!(first_common(&a, &b), None);
        // Strides without a common divisor do meet, once in their product.
        let c = comb(7, 1, 1 << 20, 1 << 40);
        let met = first_common(&a, &c).unwrap();
        assert_eq!((met % (1 << 20), met % ((1 << 20) + 1)), (0, 7));
    }
}

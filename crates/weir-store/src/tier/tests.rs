//! The tiers against a plain model, and their policy case by case.

use proptest::prelude::*;

use super::*;

const MIB: u64 = UNIT_BYTES;
const ME: ClientId = ClientId(1);

/// Files that are only remembered; creation fails on request.
#[derive(Debug, Default)]
struct FakeBacking {
    made: Vec<(SlabId, u64)>,
    /// By directory: the results of the next creations.
    failing: [Option<Errno>; 3],
}

impl Backing for FakeBacking {
    fn create(&mut self, slab: SlabId, bytes: u64) -> Result<(), Errno> {
        if let Some(errno) = self.failing[slab.directory().number()] {
            return Err(errno);
        }
        assert!(self.made.iter().all(|&(made, _)| made != slab));
        self.made.push((slab, bytes));
        Ok(())
    }

    fn room_bytes(&mut self, directory: SlabDirectory) -> Result<u64, Errno> {
        Ok(match self.failing[directory.number()] {
            Some(_) => 0,
            None => u64::MAX,
        })
    }
}

fn tiers(memory_mib: u64, warm_mib: u64, storage_mib: &[u64]) -> Tiers<FakeBacking> {
    let config = TierConfig {
        memory_budget_bytes: memory_mib * MIB,
        warm_bytes: warm_mib * MIB,
        storage_budgets_bytes: storage_mib.iter().map(|mib| mib * MIB).collect(),
    };
    Tiers::new(&config, FakeBacking::default())
}

/// Does the work of the warmers.
fn warm_all<B: Backing>(tiers: &Tiers<B>) {
    while let Some((index, units)) = tiers.board().take_slab() {
        tiers
            .board()
            .note_warm(index, units & !tiers.board().busy(index), Ok(()));
        tiers.board().finish_slab(index, Ok(()));
    }
}

#[test]
fn warm_memory_then_cold_then_files_then_no_space() {
    let mut tiers = tiers(128, 64, &[64]);
    warm_all(&tiers);
    let first = tiers.grant(MIB, 64 * MIB, ME).unwrap();
    assert_eq!(
        (first.tier(), first.warm, first.len),
        (Tier::Memory, true, 64 * MIB)
    );
    let second = tiers.grant(MIB, 64 * MIB, ME).unwrap();
    assert_eq!(
        (second.tier(), second.warm, second.len),
        (Tier::Memory, false, 64 * MIB)
    );
    let third = tiers.grant(MIB, 64 * MIB, ME).unwrap();
    assert_eq!((third.tier(), third.warm), (Tier::File, false));
    let refused = tiers.grant(MIB, MIB, ME).unwrap_err();
    assert_eq!(
        refused,
        StoreError::NoSpace {
            min_bytes: MIB,
            free_bytes: 0,
            failure: None
        }
    );
    // A deletion makes room at once.
    tiers.add_live(third.slab, third.pos, third.len).unwrap();
    tiers.release(third.segment).unwrap();
    assert!(tiers.grant(MIB, MIB, ME).is_err());
    tiers
        .remove_live(third.slab, third.pos + 5 * MIB, MIB)
        .unwrap();
    let again = tiers.grant(MIB, 64 * MIB, ME).unwrap();
    assert_eq!(
        (again.slab, again.pos, again.len),
        (third.slab, 5 * MIB, MIB)
    );
}

#[test]
fn small_warm_pieces_are_preferred_to_large_cold_ones() {
    let mut tiers = tiers(128, 64, &[]);
    let board = tiers.board().clone();
    let (index, _) = board.take_slab().unwrap();
    board.note_warm(index, 0b1111, Ok(()));
    let grants: Vec<_> = (0..3)
        .map(|_| tiers.grant(MIB, 4 * MIB, ME).unwrap())
        .collect();
    assert_eq!(
        (grants[0].warm, grants[0].pos, grants[0].len),
        (true, 0, 4 * MIB)
    );
    assert_eq!((grants[1].warm, grants[1].pos), (false, 60 * MIB));
    board.note_warm(index, 0b1_1111, Ok(()));
    let piece = tiers.grant(MIB, 4 * MIB, ME).unwrap();
    assert_eq!((piece.warm, piece.pos, piece.len), (true, 4 * MIB, MIB));
    // Warmers skip units that are being written by pwrite, and come back afterwards.
    assert_eq!(board.busy(index), unit_bits(56, 8));
    board.finish_slab(index, Ok(()));
    tiers.release(grants[1].segment).unwrap();
    assert_eq!(board.busy(index), unit_bits(56, 4));
    assert_eq!(board.take_slab(), Some((index, u64::MAX)));
    assert_eq!(board.take_slab(), None, "the stock is more than half full");
}

#[test]
fn the_stock_is_refilled_within_the_budget_and_recycled_warm() {
    let mut tiers = tiers(200, 128, &[]);
    assert_eq!(tiers.backing.made.len(), 2);
    warm_all(&tiers);
    let grant = tiers.grant(MIB, MIB, ME).unwrap();
    assert_eq!(tiers.backing.made.len(), 2, "the job is left alone");
    tiers.grant(64 * MIB, 64 * MIB, ME).unwrap();
    assert_eq!(tiers.backing.made.len(), 3, "less than half is left");
    for _ in 0..3 {
        tiers.grant(64 * MIB, 64 * MIB, ME).unwrap_or(grant);
    }
    let bytes: u64 = tiers.backing.made.iter().map(|&(_, bytes)| bytes).sum();
    assert_eq!(bytes, 200 * MIB, "the last slab is shorter");
    tiers.release(grant.segment).unwrap();
    let recycled = tiers.grant(MIB, MIB, ME).unwrap();
    assert_eq!((recycled.segment, recycled.warm), (grant.segment, true));
}

#[test]
fn a_full_directory_is_tried_again_and_a_failing_one_retired() {
    let mut tiers = tiers(0, 0, &[64, 64]);
    tiers.backing.failing = [None, Some(Errno::NOSPC), Some(Errno::IO)];
    let Err(StoreError::NoSpace { failure, .. }) = tiers.grant(MIB, MIB, ME) else {
        panic!("both directories fail");
    };
    assert!(failure.unwrap().retired);
    tiers.backing.failing = [None; 3];
    let grant = tiers.grant(MIB, MIB, ME).unwrap();
    assert_eq!(grant.slab.directory(), SlabDirectory::storage(0).unwrap());
    let usage = tiers.usage();
    assert_eq!((usage[1].failure, usage[1].free_bytes), (None, 63 * MIB));
    let retired = usage[2].failure.unwrap();
    assert_eq!(
        (retired.errno, retired.retired, usage[2].free_bytes),
        (Errno::IO, true, 0)
    );
    assert_eq!(
        retired.to_string(),
        format!("place 2 is retired: {}", Errno::IO)
    );
    // A device that fails later: its contents are still accounted.
    tiers.add_live(grant.slab, grant.pos, 10).unwrap();
    tiers.retire(grant.slab.directory(), Errno::IO);
    assert!(tiers.grant(MIB, MIB, ME).is_err());
    tiers.release(grant.segment).unwrap();
    tiers.remove_live(grant.slab, grant.pos, 10).unwrap();
}

#[test]
fn a_full_tmpfs_leads_to_the_file_tier() {
    let mut tiers = tiers(128, 0, &[64]);
    tiers.backing.failing[0] = Some(Errno::NOSPC);
    assert_eq!(tiers.grant(MIB, MIB, ME).unwrap().tier(), Tier::File);
    tiers.backing.failing[0] = None;
    assert_eq!(tiers.grant(MIB, MIB, ME).unwrap().tier(), Tier::Memory);
}

#[test]
fn cold_memory_that_others_filled_is_not_lent_until_there_is_room() {
    let mut tiers = tiers(64, 0, &[64]);
    let cold = tiers.grant(MIB, MIB, ME).unwrap();
    assert_eq!((cold.tier(), cold.warm), (Tier::Memory, false));
    tiers.backing.failing[0] = Some(Errno::NOSPC);
    tiers.refused(cold.segment);
    tiers.release(cold.segment).unwrap();
    assert_eq!(
        tiers.usage()[0].failure.map(|failure| failure.errno),
        Some(Errno::NOSPC)
    );
    assert_eq!(tiers.grant(MIB, MIB, ME).unwrap().tier(), Tier::File);
    warm_all(&tiers);
    assert!(
        tiers.grant(MIB, MIB, ME).unwrap().warm,
        "what is warm is there"
    );
    tiers.backing.failing[0] = None;
    assert_eq!(tiers.grant(MIB, MIB, ME).unwrap().tier(), Tier::Memory);
}

#[test]
fn clients_are_spread_over_the_storage_directories() {
    let mut tiers = tiers(0, 0, &[64, 64]);
    let directories: Vec<_> = (0..4)
        .map(|client| {
            tiers
                .grant(MIB, MIB, ClientId(client))
                .unwrap()
                .slab
                .directory()
                .number()
        })
        .collect();
    assert_eq!(directories, [1, 2, 1, 2]);
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let mut tiers = tiers(64, 0, &[]);
    let nowhere = SlabId::new(SlabDirectory::storage(3).unwrap(), 9);
    assert_eq!(
        tiers.remove_live(nowhere, 0, 1),
        Err(StoreError::NoSlab(nowhere))
    );
    assert_eq!(
        tiers.release(nowhere.segment(0)),
        Err(StoreError::NoSlab(nowhere))
    );
    let grant = tiers.grant(MIB, MIB, ME).unwrap();
    tiers.release(grant.segment).unwrap();
    assert!(matches!(
        tiers.release(grant.segment),
        Err(StoreError::Account { .. })
    ));
    assert!(tiers.add_live(grant.slab, grant.pos, 1).is_err());
    assert!(!tiers.is_lent_to(nowhere, 0, 1, ME));
    assert_eq!(tiers.max_slabs(), [1]);
}

#[derive(Debug, Clone)]
enum Op {
    Grant { min: u64, want: u64, client: u32 },
    GrantGap { client: u32 },
    Trim { held: usize, keep: u64 },
    AddLive { held: usize, from: u64, len: u64 },
    Free { extent: usize },
    Release { held: usize },
    ReleaseClient { client: u32 },
    Warm,
    Fail { directory: usize, failing: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..8 * MIB, 0..70 * MIB, 0u32..4)
            .prop_map(|(min, want, client)| Op::Grant { min, want, client }),
        3 => (0u32..4).prop_map(|client| Op::GrantGap { client }),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(held, keep)| Op::Trim { held, keep }),
        6 => (any::<usize>(), any::<u64>(), any::<u64>())
            .prop_map(|(held, from, len)| Op::AddLive { held, from, len }),
        6 => any::<usize>().prop_map(|extent| Op::Free { extent }),
        3 => any::<usize>().prop_map(|held| Op::Release { held }),
        1 => (0u32..4).prop_map(|client| Op::ReleaseClient { client }),
        1 => Just(Op::Warm),
        1 => (0usize..3, any::<bool>()).prop_map(|(directory, failing)| Op::Fail { directory, failing }),
    ]
}

/// The expected state: plain lists.
#[derive(Default)]
struct Model {
    held: Vec<(Grant, ClientId)>,
    /// (slab, pos, len)
    live: Vec<(SlabId, u64, u64)>,
}

impl Model {
    /// The units that clients hold.
    fn held_units(&self, of: SlabDirectory) -> std::collections::BTreeSet<(SlabId, u64)> {
        let held = self.held.iter().map(|(grant, _)| grant);
        let units = held
            .filter(|grant| grant.slab.directory() == of)
            .flat_map(|grant| {
                let units = grant.pos / MIB..(grant.pos + grant.len).div_ceil(MIB);
                units.map(|unit| (grant.slab, unit))
            });
        units.collect()
    }

    /// Dead bytes of units that have living ones and that no client holds.
    fn gap_bytes(&self, of: SlabDirectory) -> u64 {
        let held = self.held_units(of);
        let mut live = std::collections::BTreeMap::new();
        for &(slab, pos, len) in self.live.iter().filter(|e| e.0.directory() == of) {
            for unit in pos / MIB..(pos + len).div_ceil(MIB) {
                let bytes = (pos + len).min((unit + 1) * MIB) - pos.max(unit * MIB);
                *live.entry((slab, unit)).or_insert(0) += bytes;
            }
        }
        live.retain(|unit, _| !held.contains(unit));
        live.values().map(|bytes| MIB - bytes).sum()
    }

    /// True if a unit of a slab is neither held nor alive.
    fn is_free(&self, slab: SlabId, unit: u64) -> bool {
        let (from, to) = (unit * MIB, (unit + 1) * MIB);
        let held = |(grant, _): &(Grant, ClientId)| {
            grant.slab == slab
                && grant.pos < to
                && from < (grant.pos + grant.len).next_multiple_of(MIB)
        };
        let live =
            |&(of, pos, len): &(SlabId, u64, u64)| of == slab && pos < to && from < pos + len;
        !self.held.iter().any(held) && !self.live.iter().any(live)
    }

    fn check(&self, tiers: &Tiers<FakeBacking>) {
        for usage in tiers.usage() {
            let here = |slab: &SlabId| slab.directory() == usage.directory;
            let live: u64 = self
                .live
                .iter()
                .filter(|(slab, ..)| here(slab))
                .map(|e| e.2)
                .sum();
            let held = self.held_units(usage.directory).len() as u64 * MIB;
            assert_eq!(usage.gap_bytes, self.gap_bytes(usage.directory));
            assert_eq!((usage.live_bytes, usage.held_bytes), (live, held));
            let made = tiers.backing.made.iter().filter(|(slab, _)| here(slab));
            let made_bytes: u64 = made.clone().map(|(_, bytes)| bytes).sum();
            assert_eq!(usage.created_bytes, made_bytes);
            assert!(made_bytes <= usage.capacity_bytes);
            let free: usize = made
                .map(|&(slab, bytes)| {
                    (0..bytes / MIB)
                        .filter(|&unit| self.is_free(slab, unit))
                        .count()
                })
                .sum();
            let free_bytes = free as u64 * MIB + usage.capacity_bytes - made_bytes;
            assert_eq!(usage.free_bytes, free_bytes);
        }
    }

    /// True if a slab has an aligned run of `units` free units, or may get one.
    fn could_lend(&self, tiers: &Tiers<FakeBacking>, units: u64) -> bool {
        let grows = tiers.usage().iter().any(|usage| {
            let left = (usage.capacity_bytes - usage.created_bytes).min(SLAB_BYTES);
            left / MIB >= units && tiers.backing.failing[usage.directory.number()].is_none()
        });
        let lends = tiers.backing.made.iter().any(|&(slab, bytes)| {
            (0..bytes / MIB / units)
                .any(|run| (run * units..(run + 1) * units).all(|unit| self.is_free(slab, unit)))
        });
        grows || lends
    }
}

/// Takes back all segments of a client, as of one that is gone; returns their number.
fn release_segments_of<B: Backing>(tiers: &mut Tiers<B>, client: ClientId) -> usize {
    let slabs = tiers.slabs();
    let held =
        slabs.flat_map(|(id, slab)| slab.segments_of(client).map(move |unit| id.segment(unit)));
    let held: Vec<SegmentId> = held.collect();
    for segment in &held {
        tiers.release(*segment).unwrap();
    }
    held.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn like_a_plain_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut tiers = tiers(150, 64, &[64, 37]);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Grant { min, want, client } => {
                    let client = ClientId(client);
                    match tiers.grant(min, want, client) {
                        Ok(grant) => {
                            prop_assert!(grant.len >= min && grant.len.is_power_of_two());
                            prop_assert!(grant.len <= want.max(min).max(1).next_power_of_two().max(MIB));
                            prop_assert_eq!(grant.pos % grant.len, 0);
                            for unit in grant.pos / MIB..(grant.pos + grant.len) / MIB {
                                prop_assert!(model.is_free(grant.slab, unit));
                            }
                            prop_assert!(tiers.is_lent_to(grant.slab, grant.pos, grant.len, client));
                            model.held.push((grant, client));
                        }
                        Err(error) => {
                            let is_no_space = matches!(error, StoreError::NoSpace { .. });
                            prop_assert!(is_no_space);
                            let units = u64::from(units_for(min));
                            prop_assert!(!model.could_lend(&tiers, units), "{}", error);
                        }
                    }
                }
                Op::GrantGap { client } => {
                    let client = ClientId(client);
                    let longest = tiers.usage().iter().map(|usage| usage.gap_bytes).max();
                    if let Some(grant) = tiers.grant_gap(client) {
                        let (from, to) = (grant.pos, grant.pos + grant.len);
                        prop_assert!(from % 64 == 0 && grant.len >= 64 && from / MIB == (to - 1) / MIB);
                        let unit = (grant.slab, from / MIB);
                        prop_assert!(!model.held_units(grant.slab.directory()).contains(&unit));
                        let meets = |&(of, at, n): &(SlabId, u64, u64)| of == grant.slab && at < to && from < at + n;
                        prop_assert!(!model.live.iter().any(meets));
                        prop_assert!(tiers.is_lent_to(grant.slab, grant.pos, grant.len, client));
                        model.held.push((grant, client));
                    } else if tiers.backing.failing[0].is_none() {
                        // The remaining gaps are shorter than a line between two living bytes each.
                        prop_assert!(longest.unwrap_or(0) < 64 * 2 * (1 + model.live.len() as u64));
                    }
                }
                Op::Trim { held, keep } if !model.held.is_empty() => {
                    let at = held % model.held.len();
                    let grant = &mut model.held[at].0;
                    let keep = 1 + keep % grant.len;
                    let trimmed = tiers.trim(grant.segment, keep);
                    prop_assert_eq!(trimmed, keep.next_multiple_of(MIB) < grant.len);
                    if trimmed {
                        grant.len = keep.next_multiple_of(MIB);
                    }
                }
                Op::AddLive { held, from, len } if !model.held.is_empty() => {
                    let (grant, _) = model.held[held % model.held.len()];
                    let from = from % grant.len;
                    let len = 1 + len % (grant.len - from);
                    let (slab, pos) = (grant.slab, grant.pos + from);
                    let meets = |&(of, at, n): &(SlabId, u64, u64)| of == slab && at < pos + len && pos < at + n;
                    if !model.live.iter().any(meets) {
                        tiers.add_live(slab, pos, len).unwrap();
                        model.live.push((slab, pos, len));
                    }
                }
                Op::Free { extent } if !model.live.is_empty() => {
                    let (slab, pos, len) = model.live.swap_remove(extent % model.live.len());
                    tiers.remove_live(slab, pos, len / 2).unwrap();
                    tiers.remove_live(slab, pos + len / 2, len - len / 2).unwrap();
                }
                Op::Release { held } if !model.held.is_empty() => {
                    let (grant, _) = model.held.swap_remove(held % model.held.len());
                    tiers.release(grant.segment).unwrap();
                }
                Op::ReleaseClient { client } => {
                    let before = model.held.len();
                    model.held.retain(|(_, holder)| *holder != ClientId(client));
                    prop_assert_eq!(release_segments_of(&mut tiers, ClientId(client)), before - model.held.len());
                }
                Op::Warm => warm_all(&tiers),
                Op::Fail { directory, failing } => {
                    tiers.backing.failing[directory] = failing.then_some(Errno::NOSPC);
                }
                _ => {}
            }
            model.check(&tiers);
        }
        for (slab, pos, len) in model.live.drain(..) {
            tiers.remove_live(slab, pos, len).unwrap();
        }
        for client in 0..4 {
            release_segments_of(&mut tiers, ClientId(client));
        }
        for usage in tiers.usage() {
            prop_assert_eq!(usage.free_bytes, usage.capacity_bytes);
        }
    }
}

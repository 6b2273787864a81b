//! Everything that programs write arrives on the volume, bit for bit.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::room::{said, Room};
use super::volume::{Layout, BRICKS};

/// Files as simulations make them, in two parts: names are changed before their files are on the target, and
/// after. The third argument waits for the target between the parts.
const PROGRAM: &str = "
    mkdir -p $1
    cd $1
    # A temporary name, and the final one.
    seq 100000 > mesh.tmp; mv mesh.tmp mesh
    # A checkpoint in a directory, and a link to the last one.
    save() { mkdir $1.tmp; for rank in 1 2 3 4; do seq $(($2 + rank)) > $1.tmp/rank.$rank; done; mv $1.tmp $1; }
    save ckpt.1 10000; ln -s ckpt.1 latest
    save ckpt.2 20000; ln -s ckpt.2 next; mv -T next latest; rm -r ckpt.1
    ln mesh mesh.link
    setfattr -n user.unit -v metre mesh
    seq 1000 > cut; truncate -s 1000 cut; truncate -s 100000 cut
    mkdir -p small a/b/c
    for n in $(seq 90); do echo $n > small/$n; done
    seq 5 > replaced; seq 10 > new; mv new replaced
    $3 drain --wait --timeout 50s
    # To names that other bricks have; GlusterFS then has a file of one and a pointer of the other.
    for n in $(seq 1 3 90); do mv small/$n small/moved.$n; done
    for n in $(seq 2 3 90); do rm small/$n; done
    mv small/3 a/b/c/three
    mv a/b d
    mv ckpt.2 ckpt.last; ln -sfn ckpt.last latest
    save ckpt.last.new 30000
    mv cut small; ln small/cut cut.link; echo more >> small/cut
    seq 7 > new; mv new replaced
    rm mesh; chmod 640 mesh.link
    touch -d '2001-01-02 03:04:05.123456789' mesh.link";

#[test]
fn an_elevated_directory_is_as_the_programs_left_it() {
    for layout in [Layout::Distributed, Layout::Replicated] {
        let Some(room) = Room::new("an elevated directory of GlusterFS", layout) else {
            return;
        };
        // The file system has these files before. The program reads, renames, appends to, replaces and removes them.
        let before = "
            mkdir -p $1/there
            cd $1/there
            for n in $(seq 20); do seq $n > old.$n; done";
        let then = "
            cd $1/there
            cat old.* > sum
            for n in 1 2 3 4 5 6; do mv old.$n was.$n; done
            for n in 7 8 9; do echo more >> old.$n; done
            for n in 10 11 12; do seq 3 > new; mv new old.$n; done
            rm old.13 old.14
            ls | wc -l > ../count
            cd ..";
        let script = format!("{then}\n{PROGRAM}");
        let (dir, plain) = (room.target("run"), room.beside("plain"));
        room.run_plain(&dir, before);
        room.run_plain(&plain, before);
        room.run_plain(&plain, &script);
        let elevate = ["--elevate", dir.to_str().unwrap()];
        room.run(&elevate, &dir, &script);
        room.assert_same("run", "plain");
    }
}

#[test]
fn files_are_drained_and_staged_both_ways() {
    let Some(room) = Room::new("stages and drains to GlusterFS", Layout::Distributed) else {
        return;
    };
    let plain = room.beside("plain");
    let sparse = "
        truncate -s 200M sparse
        seq 1000 | dd of=sparse bs=4k seek=20000 conv=notrunc status=none";
    let script = format!("{PROGRAM}\n{sparse}");
    room.run_plain(&plain, &script);
    // To it, while the program runs.
    let out = room.target("out");
    let drained = ["--drain-to", out.to_str().unwrap()];
    room.run(&drained, "/weir".as_ref(), &script);
    room.assert_same("out", "plain");
    // From it, and to it again.
    let script = "
        $3 stage in --verify $1/ /weir/in
        $3 stage out --verify /weir/in/ $1.staged";
    room.run(&[], &out, script);
    room.assert_same("out.staged", "plain");
    for name in ["out", "out.staged"] {
        let on_bricks = (0..BRICKS).filter_map(|index| {
            let file = room.gluster.brick(index).join(name).join("sparse");
            fs::metadata(file).ok()
        });
        let blocks: u64 = on_bricks.map(|file| file.blocks()).sum();
        assert!(blocks > 0 && blocks * 512 < 1 << 20, "{name}: {blocks}");
    }
    // A stage that finds everything there moves nothing.
    let script = "
        $3 stage in $1/ /weir/in
        $3 stage out --json /weir/in/ $1 > $2/again";
    room.run(&[], &out, script);
    assert!(
        room.read("again").contains("\"bytes\":0"),
        "{}",
        room.read("again")
    );
}

#[test]
fn a_file_larger_than_the_instance_passes_through_it() {
    let Some(room) = Room::new("large files to GlusterFS", Layout::Distributed) else {
        return;
    };
    let dir = room.target("run");
    fs::create_dir(room.gluster.outside(&dir)).unwrap();
    // Five times what the instance has.
    let script = "
        seq 50000000 | head -c 160M > $1/large
        sha256sum < $1/large > $2/read";
    let small = [
        "--set",
        "memory.budget=16M",
        "--set",
        "file.budget=16M",
        "--elevate",
    ];
    let options = [&small[..], &[dir.to_str().unwrap()]].concat();
    room.run(&options, &dir, script);
    let mut sum = room.gluster.client().command("sh");
    sum.args([
        "-ec",
        "sha256sum < $1/large; seq 50000000 | head -c 160M | sha256sum",
        "sh",
    ]);
    let sums = said(sum.arg(&dir));
    let (moved, expected) = sums.split_once('\n').unwrap();
    assert_eq!(moved, expected.trim());
    assert_eq!(room.read("read").trim(), moved);
}

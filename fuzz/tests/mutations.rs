//! Inputs that nobody has kept: those that are, damaged at random. An engine that sees which
//! branches are taken finds more (`bin/fuzz`), but has to build everything anew; this runs with the
//! tests, from another seed each time.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::panic::{set_hook, take_hook};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_fuzz::{TARGETS, Target};

/// Whether any thread panicked: the proxy goes on after that, and an engine would end.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// How many inputs a target gets: what it takes in about a second.
fn inputs_of(target: Target) -> usize {
    match target.name {
        "connection" => 200,
        "journal" => 4_000,
        "config" | "paths" => 20_000,
        _ => 100_000,
    }
}

/// Numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        const TELLING: &[u8] = b"\0\r\n \t:;,/\"\\%_-+0919{}[]\x7F\x80\xFF";
        if self.below(2) == 0 { TELLING[self.below(TELLING.len())] } else { self.next() as u8 }
    }

    /// A piece of something of that length.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..(start + self.below(16)).min(length)
    }

    /// An input with some damage, perhaps with a part of another one.
    fn damage(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut damaged = input.to_vec();
        for _ in 0..=self.below(6) {
            let piece = self.piece(damaged.len());
            match self.below(6) {
                0 => damaged.insert(piece.start, self.byte()),
                1 => drop(damaged.drain(piece)),
                2 => damaged.extend_from_within(piece),
                3 => drop(damaged.splice(piece, other[self.piece(other.len())].iter().copied())),
                4 => damaged[piece].fill_with(|| self.byte()),
                _ => damaged[piece].iter_mut().take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            }
        }
        damaged
    }
}

fn kept(target: Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The seed of this run: `FENCEPOST_FUZZ_SEED` to have one again.
fn seed() -> u64 {
    let given = std::env::var("FENCEPOST_FUZZ_SEED")
        .ok()
        .map(|seed| seed.parse().expect("FENCEPOST_FUZZ_SEED is a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one(std::process::id())).max(1)
}

#[test]
fn damaged_inputs_leave_every_target_content() {
    let tell = take_hook();
    set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::Relaxed);
        tell(panic);
    }));
    let seed = seed();
    eprintln!("FENCEPOST_FUZZ_SEED={seed}"); // Shown if this fails.
    let mut random = Random(seed);
    for target in TARGETS {
        let kept = kept(target);
        for _ in 0..inputs_of(target) {
            let (one, other) = (random.below(kept.len()), random.below(kept.len()));
            let input = random.damage(&kept[one], &kept[other]);
            let shown = Shown { target: target.name, input: &input };
            (target.run)(&input);
            assert!(
                !PANICKED.load(Ordering::Relaxed),
                "a thread panicked over this or the one before: {shown:?}"
            );
            shown.passes();
        }
    }
}

/// Tells of the input that a target panics over.
#[derive(Debug)]
struct Shown<'i> {
    target: &'static str,
    input: &'i [u8],
}

impl Shown<'_> {
    fn passes(self) {
        std::mem::forget(self);
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        eprintln!("{}: {}", self.target, self.input.escape_ascii());
    }
}

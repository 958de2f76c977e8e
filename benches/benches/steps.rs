//! How long the steps of each request take: `cargo bench --package fencepost-benches`.

use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use fencepost_benches::Case;

fn steps(criterion: &mut Criterion) {
    for case in Case::ALL {
        // What a case makes ready once is in the time too: some microseconds, of thousands of
        // calls.
        criterion.bench_function(case.name(), |bencher| {
            bencher.iter_custom(|times| {
                let begun = Instant::now();
                case.run(times);
                begun.elapsed()
            });
        });
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);

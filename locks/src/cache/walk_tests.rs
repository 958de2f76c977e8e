//! A look at the writes between a read and what was known before it, which ends late.

use fencepost_policy::{Holding, Layout};

use super::scope_world::{Act, World, revision};

const READ: [Act; 3] = [Act::SendRead(0), Act::AnswerRead(0), Act::MergeRead(0)];

fn play(world: &mut World, acts: &[Act]) {
    for act in acts {
        world.act(*act);
        world.check();
    }
}

/// The lock was known to be free, and then it was held again, by a tenure that had ended.
#[test]
fn what_a_walk_shows_in_the_end_takes_back_nothing_that_was_learnt_meanwhile() {
    let mut world = World::new(Layout::Key);
    play(&mut world, &[Act::Put(0, b'a')]);
    play(&mut world, &READ);
    play(&mut world, &[Act::Put(0, b'b'), Act::Put(0, b'b')]);
    play(&mut world, &READ);
    let walk = world.walks[0].take().expect("there are writes to be looked at");
    play(&mut world, &[Act::Delete(0)]);
    play(&mut world, &READ);
    let known =
        |world: &mut World| (world.lock(0).as_of(), world.lock(0).published().snapshot.clone().unwrap().holding);
    assert_eq!(known(&mut world), (Some(revision(5)), Holding::Free));
    world.walks[0] = Some(walk);
    play(&mut world, &[Act::EndWalk(0)]);
    assert_eq!(known(&mut world), (Some(revision(5)), Holding::Free));
}

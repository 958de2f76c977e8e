//! What happens to the world: holders come and go, clients send, things break.

use std::rc::Rc;

use fencepost_policy::{Layout, Revision};
use tokio::time::sleep;

use crate::chance::Chance;
use crate::end;
use crate::executor::Class;
use crate::proxy::{Request, arrive};
use crate::truth::{FREE, Token, Written};
use crate::world::World;

const STEPS: u64 = 30;
const OWNERS: [&str; 3] = ["a", "b", "c"];

/// The whole of a run: writes, faults and requests, then quiet until all is answered.
pub(crate) async fn play(world: Rc<World>) {
    let mut chance = Chance::of(world.seed, "script");
    for lock in 0..world.plan.locks.len() {
        change_holder(&world, &mut chance, lock);
    }
    world.hosts.iter().for_each(|host| world.start_proxy(host, None));
    let (clients, seed) = (Rc::clone(&world), world.seed);
    world.executor.spawn(Class::World, None, send_requests(clients, Chance::of(seed, "clients")));
    let mut has_rewound = !world.plan.rewinds;
    for step in 0..STEPS {
        sleep(chance.delay(60, 250)).await;
        match chance.within(0..=39) {
            0 => {
                compact(&world, &mut chance);
            }
            1 => {
                world.note(|| "store: ends all watches".to_owned());
                world.store.end_watches();
            }
            2 => world.cut_off(chance.millis(20..=900)),
            3 if world.plan.remembers => {
                let host = &world.hosts[0];
                let seen = world.kill_proxy(host);
                sleep(chance.millis(0..=100)).await;
                world.start_proxy(host, seen);
            }
            4 | 5 if !has_rewound && step > STEPS / 3 => {
                has_rewound = true;
                rewind(&world, &mut chance).await;
            }
            6 if world.plan.shadows => turn_route(&world, &mut chance),
            _ => {
                let lock = chance.index(world.plan.locks.len());
                change_holder(&world, &mut chance, lock);
            }
        }
    }
    world.note(|| "the end is near".to_owned());
    end::play(&world).await;
}

pub(crate) fn compact(world: &World, chance: &mut Chance) {
    let revision = chance.within(world.compacted.get()..=world.store.revision().get());
    world.note(|| format!("store: compacts up to {revision}"));
    world.store.compact(Revision::new(revision).expect("it has been there"));
    world.compacted.set(revision);
}

/// A route turns from watching to enforcing, or back.
fn turn_route(world: &World, chance: &mut Chance) {
    let lock = chance.index(world.plan.locks.len());
    let mut shadows = world.shadows.borrow_mut();
    shadows[lock] = !shadows[lock];
    let mode = if shadows[lock] { "watches" } else { "enforces" };
    world.note(|| format!("the route of {} {mode} from now on", world.plan.locks[lock].0));
}

/// A backup is restored. Mostly nobody writes until that can be noticed; some time after it is
/// accepted.
async fn rewind(world: &Rc<World>, chance: &mut Chance) {
    let newest = world.store.revision().get();
    let oldest = world.compacted.get().max(newest.saturating_sub(12));
    if oldest == newest {
        return; // There is no backup of an earlier revision.
    }
    world.rewind(chance.within(oldest..=newest - 1));
    if chance.one_in(3) {
        return;
    }
    sleep(chance.millis(300..=1_000)).await;
    if let Some(proxy) = world.hosts[0].proxy() {
        world.accept_regression(proxy);
    }
}

pub(crate) fn put(key: &str, value: &str) -> Written {
    Written { key: key.to_owned(), value: Some(value.to_owned()) }
}

pub(crate) fn delete(key: &str) -> Written {
    Written { key: key.to_owned(), value: None }
}

/// Somebody acquires, renews, releases or loses the lock, or queues for it.
pub(crate) fn change_holder(world: &Rc<World>, chance: &mut Chance, lock: usize) {
    let (key, layout) = world.plan.locks[lock];
    let writes = match layout {
        Layout::Key => change_key(world, chance, key),
        Layout::Election | Layout::Mutex => {
            let queue = world.truth.borrow().locks[lock].queue();
            let joins = |chance: &mut Chance| {
                let queued = world.queued.get() + 1;
                world.queued.set(queued);
                // As in etcd, the order of the names is not that of the revisions.
                let lease = Chance::of(world.seed, queued).within(0x1000..=0xffff);
                put(&format!("{key}/{lease:x}-{queued}"), OWNERS[chance.index(OWNERS.len())])
            };
            let Some((_, holder, name)) = queue.first() else {
                return world.write(vec![joins(chance)]);
            };
            let joining = joins(chance);
            match chance.within(0..=9) {
                0..=2 if queue.len() < 4 => vec![joining],
                4 => vec![delete(holder), joining], // In one transaction.
                3 if queue.len() < 4 => vec![joining, joins(chance)], // The same: they are first together, once they are.
                5 if layout == Layout::Election => vec![put(holder, &format!("{name}'"))],
                6 => vec![delete(&queue[chance.index(queue.len())].1)],
                _ => vec![delete(holder)],
            }
        }
    };
    world.write(writes);
}

fn change_key(world: &World, chance: &mut Chance, key: &'static str) -> Vec<Written> {
    let owner = OWNERS[chance.index(OWNERS.len())];
    let Some(stored) = world.store.get(key) else {
        return vec![put(key, owner)];
    };
    let holder = String::from_utf8(stored.value.to_vec()).expect("owners are text");
    match chance.within(0..=9) {
        0..=2 if holder != FREE => vec![put(key, &holder)],
        3 | 4 => vec![delete(key)],
        5 => vec![put(key, FREE)],
        _ => vec![put(key, owner)],
    }
}

/// Holders, former holders, waiters and liars send requests. Some are on their way for long.
pub(crate) async fn send_requests(world: Rc<World>, mut chance: Chance) {
    for name in 0.. {
        let (usual, rare) = if world.is_group() { (6, 60) } else { (40, 120) };
        sleep(chance.delay(usual, rare)).await;
        if world.clients_rest.get() {
            return;
        }
        let hosts = world.hosts.len();
        let Some(token) = choose_token(&world, &mut chance) else { continue };
        let request = Request {
            name,
            host: if hosts > 1 { chance.index(hosts) } else { 0 },
            token,
            linearizable: chance.one_in(4),
            is_fence: chance.one_in(8),
            is_exempt: chance.one_in(20),
            leaves: chance.one_in(10).then(|| chance.millis(0..=300)),
        };
        let held_back = chance.delay(5, 1_500);
        let host = Rc::clone(&world.hosts[request.host]);
        let (there, sender) = (Rc::clone(&world), host.proxy().map(|proxy| proxy.life));
        world.executor.spawn(Class::World, None, async move {
            sleep(held_back).await;
            if there.clients_rest.get() {
                return;
            }
            let life = host.proxy().map(|proxy| proxy.life).or(sender);
            let proxy = Rc::clone(&there);
            there.executor.spawn(Class::Proxy, life, async move {
                let _ = arrive(proxy, request).await; // Its client has been told.
            });
        });
    }
}

fn choose_token(world: &World, chance: &mut Chance) -> Option<Token> {
    let told = world.told.borrow();
    let lock = world.any_lock(chance);
    let of_lock: Vec<&Token> =
        told.iter().map(|(_, token)| token).filter(|token| token.lock == lock).collect();
    let newest = (*of_lock.last()?).clone();
    let truth = world.truth.borrow();
    Some(match chance.within(0..=19) {
        0..=12 => newest,
        13..=16 => of_lock[chance.index(of_lock.len())].clone(),
        17 => match truth.locks[lock].queue().last() {
            Some((created, key, value)) => {
                let owner = if truth.locks[lock].layout == Layout::Mutex { key } else { value };
                Token { lock, owner: owner.clone(), revision: *created }
            }
            None => newest,
        },
        18 => Token { revision: newest.revision + chance.within(1..=3), ..newest },
        _ => Token { owner: OWNERS[chance.index(OWNERS.len())].to_owned(), ..newest },
    })
}

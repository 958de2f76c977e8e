//! What happens to a group: its members are killed, stand still, are cut off, leave and come back,
//! while holders come and go.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_locks::{MemberSystem, StoreError, Swap, Swapped, Write};
use fencepost_policy::group::{MemberId, Standing};
use fencepost_policy::{Moment, Revision};
use tokio::time::{Instant, sleep};

use crate::chance::Chance;
use crate::end;
use crate::executor::Class;
use crate::host::Host;
use crate::plan::MEMBERS;
use crate::script::{change_holder, compact, send_requests};
use crate::world::{ORPHAN_TIMEOUT, World};

const STEPS: u64 = 90;

/// Virtual time, and names by chance from the seed.
#[derive(Debug)]
pub(crate) struct VirtualSystem {
    start: Instant,
    names: Mutex<Chance>,
}

impl VirtualSystem {
    pub(crate) fn new(seed: u64, start: Instant) -> VirtualSystem {
        VirtualSystem { start, names: Mutex::new(Chance::of(seed, "names")) }
    }
}

impl MemberSystem for VirtualSystem {
    fn time(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_nanos()).unwrap() + 1)
    }

    fn new_member(&self) -> MemberId {
        MemberId(self.names.lock().unwrap().next().into())
    }
}

/// A key of the group that an operator deletes.
pub(crate) struct Deleted {
    /// The life of the proxy whose it was, if that has not ended: its gates know what it has let in.
    life: Option<u64>,
    revision: u64,
    /// Until when what its member has let in may be at the worker.
    until: Instant,
}

/// The whole of a run: what befalls the members, and the holders of the locks meanwhile.
pub(crate) async fn play(world: Rc<World>) {
    let mut chance = Chance::of(world.seed, "script");
    for lock in 0..world.plan.locks.len() {
        change_holder(&world, &mut chance, lock);
    }
    for host in &world.hosts {
        world.start_proxy(host, None);
        sleep(chance.millis(0..=200)).await;
    }
    let clients = send_requests(Rc::clone(&world), Chance::of(world.seed, "clients"));
    world.executor.spawn(Class::World, None, clients);
    for _ in 0..STEPS {
        let most = if chance.one_in(3) { 30 } else { 300 };
        sleep(chance.delay(most / 3, most)).await;
        let host = Rc::clone(&world.hosts[chance.index(world.hosts.len())]);
        match chance.within(0..=79) {
            0 => compact(&world, &mut chance),
            1 => {
                world.note(|| "store: ends all watches".to_owned());
                world.store.end_watches();
            }
            2 => world.cut_off(chance.millis(20..=1_000)),
            3 | 4 => {
                let time = chance.millis(50..=2_000);
                world.note(|| format!("{host}: the store is out of its reach for {time:?}"));
                world.count("cut off");
                host.cut_off(Instant::now() + time);
            }
            5 | 12..=14 if world.plan.deletes_keys => {
                let (there, chance) = (Rc::clone(&world), Chance::of(world.seed, chance.next()));
                world.executor.spawn(Class::World, None, async move {
                    lets_in(&host).await;
                    delete_key(&there, &host, chance);
                });
            }
            number @ 6..=11 if !host.is_taken.replace(true) => {
                let (there, mut chance) =
                    (Rc::clone(&world), Chance::of(world.seed, chance.next()));
                world.executor.spawn(Class::World, None, async move {
                    if chance.one_in(2) {
                        lets_in(&host).await;
                        is_succeeded(&there, &host, Chance::of(there.seed, chance.next()));
                    }
                    match number {
                        6 => is_killed(&there, &host, chance).await,
                        7..=10 => stands_still(&there, &host, chance).await,
                        _ => leaves(&there, &host, chance).await,
                    }
                    host.is_taken.set(false);
                });
            }
            _ => {
                let lock = world.any_lock(&mut chance);
                change_holder(&world, &mut chance, lock);
                let is_held = world.truth.borrow().locks[lock].present().is_some();
                if !is_held && !chance.one_in(4) {
                    change_holder(&world, &mut chance, lock);
                }
            }
        }
    }
    while world.hosts.iter().any(|host| host.is_taken.get()) {
        sleep(Duration::from_millis(10)).await;
    }
    world.note(|| "the end is near".to_owned());
    end::play_group(&world).await;
}

async fn is_killed(world: &Rc<World>, host: &Rc<Host>, mut chance: Chance) {
    let seen = world.kill_proxy(host);
    world.count("killed");
    sleep(chance.millis(0..=800)).await;
    world.start_proxy(host, seen);
}

/// The proxy drains for as long as its operator has patience, and leaves its group.
async fn leaves(world: &Rc<World>, host: &Rc<Host>, mut chance: Chance) {
    let Some(proxy) = host.proxy() else { return };
    world.note(|| format!("{host}: drains"));
    host.drains.set(true);
    sleep(chance.millis(0..=400)).await;
    let group = Arc::clone(proxy.source.group().expect("it is in one"));
    tokio::select! {
        biased;
        () = group.leave() => {
            world.note(|| format!("{host}: has left"));
            world.count("drained");
        }
        () = sleep(chance.millis(10..=1_000)) => {}
    }
    let seen = world.kill_proxy(host);
    sleep(chance.millis(0..=500)).await;
    world.start_proxy(host, seen);
}

/// The process of the proxy is stopped, and goes on later, or is killed.
async fn stands_still(world: &Rc<World>, host: &Rc<Host>, mut chance: Chance) {
    let Some(proxy) = host.proxy() else { return };
    let most = [200, 1_000, 3_000][chance.index(3)];
    let time = chance.millis(5..=most);
    let ttl = world.plan.member_ttl;
    let group = proxy.source.group().expect("it is in one");
    // How long it has not been heard of, at least.
    let silent = match (group.standing(), group.changes_in()) {
        (Standing::Stands, Some(time)) => Some((ttl * 2 / 3).saturating_sub(time)),
        (Standing::Lapsed, Some(time)) => Some((ttl * 19 / 20).saturating_sub(time)),
        _ => None, // It has been cut.
    };
    if let Some(silent) = silent.filter(|silent| *silent + time >= ttl * 19 / 20) {
        // The worker is bound to be done with its requests when the others think so.
        let bound = Instant::now() + (ttl + ORPHAN_TIMEOUT) - silent;
        world.worker.lose_all(host.number, bound);
    }
    world.note(|| format!("{host}: stands still for {time:?}, silent for {silent:?}"));
    world.count("stood still");
    world.executor.hold(proxy.life);
    sleep(time).await;
    host.stood_still.set(host.stood_still.get() + time);
    if chance.one_in(6) {
        return is_killed(world, host, chance).await;
    }
    world.note(|| format!("{host}: goes on"));
    host.went_on.set(Some(Instant::now()));
    world.executor.release(proxy.life);
}

/// Waits for a request that is let in and not written yet, but not for long.
async fn lets_in(host: &Host) {
    tokio::select! {
        biased;
        () = host.lets_in.notified() => {}
        () = sleep(Duration::from_millis(300)) => {}
    }
}

/// The lock of the request that was let in last changes its holder soon.
fn is_succeeded(world: &Rc<World>, host: &Rc<Host>, mut chance: Chance) {
    let (there, lock) = (Rc::clone(world), host.last_let_in.get());
    world.executor.spawn(Class::World, None, async move {
        sleep(chance.millis(0..=1_000)).await;
        change_holder(&there, &mut chance, lock);
        if there.truth.borrow().locks[lock].present().is_none() {
            change_holder(&there, &mut chance, lock);
        }
    });
}

/// An operator deletes the key of this member or of a live one that it knows. All members have seen that
/// key: nothing is promised of a member that has not.
fn delete_key(world: &World, host: &Host, mut chance: Chance) {
    let view = |host: &Rc<Host>| {
        let proxy = host.proxy()?;
        Some((host.number, proxy.life, proxy.source.group()?.view()))
    };
    let views: Vec<_> = world.hosts.iter().filter_map(view).collect();
    let Some((_, _, view)) = views.iter().find(|(number, ..)| *number == host.number) else {
        return;
    };
    let ids: Vec<MemberId> =
        view.me.into_iter().chain(view.others.iter().map(|one| one.id)).collect();
    if ids.is_empty() {
        return;
    }
    let id = ids[chance.index(ids.len())];
    let is_seen = views.iter().all(|(_, _, view)| {
        view.me.is_some() && (view.me == Some(id) || view.others.iter().any(|one| one.id == id))
    });
    let key = format!("{MEMBERS}{id}");
    // A mark that vanishes says that somebody has waited for its member.
    let is_marked = |value: &[u8]| !String::from_utf8_lossy(value).contains(r#""state":"live""#);
    if !is_seen || world.store.get(&key).is_none_or(|found| is_marked(&found.value)) {
        return;
    }
    let revision = world.store.transact([Write::Delete { key: key.into() }]).get();
    world.note(|| format!("store: revision {revision}: the key of {id} is deleted by hand"));
    world.count("deleted by hand");
    let life = views.iter().find(|(_, _, view)| view.me == Some(id)).map(|(_, life, _)| *life);
    let until = Instant::now() + world.plan.member_ttl + ORPHAN_TIMEOUT;
    world.deleted.borrow_mut().push(Deleted { life, revision, until });
}

/// Excuses what happens if a member has joined since a key was deleted: it has never seen that key,
/// and nothing is promised until nothing of the key's member is left.
pub(crate) fn notice(world: &World, host: &Host) {
    let Some(proxy) = host.proxy() else { return };
    let joined = || proxy.source.group()?.stands_since();
    let mut deleted = world.deleted.borrow_mut();
    deleted.retain(|one| Instant::now() < one.until);
    for one in deleted.iter().filter(|one| one.life != Some(proxy.life)) {
        if joined().is_some_and(|joined| joined.get() > one.revision) {
            world.worker.excuse(one.until);
        }
    }
}

impl World {
    pub(crate) fn swapped(
        &self,
        host: &Host,
        swap: &Swap,
        came_of_it: &Result<Swapped, StoreError>,
    ) {
        self.note(|| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let value = swap.value.as_ref().map_or("(deleted)".to_owned(), |value| text(value));
            let outcome = match came_of_it {
                Ok(Swapped { is_written: true, revision, .. }) => format!("revision {revision}"),
                Ok(_) => format!("not written, it is not {:?}", swap.expected.map(Revision::get)),
                Err(error) => error.to_string(),
            };
            format!("store: {outcome}: {host}: {} = {value}", text(&swap.key))
        });
    }
}

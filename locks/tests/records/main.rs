//! What every store must do whose records name their own tenures: one suite, run through the cache
//! against a store in memory and against real servers; and what only some of them can be put
//! through.

mod consul;
mod contract;
mod kubernetes;
mod mariadb;
mod memory;
mod postgres;
mod postgres_failover;
mod recipes;
mod went_back;
mod world;
#[cfg(feature = "zookeeper")]
mod zookeeper;
#[cfg(feature = "zookeeper")]
mod zookeeper_clients;
#[cfg(feature = "zookeeper")]
mod zookeeper_faults;

/// Makes a test of each rule for each store; one that is not installed is skipped, and says so.
macro_rules! every_store {
    (stores: { $($store:ident: $start:expr,)* } rules: $rules:tt) => {
        $(every_store!(@ $store, $start, $rules);)*
    };
    (@ $store:ident, $start:expr, { $($rule:ident,)* }) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $rule() {
                    if let Some(world) = $start.await {
                        crate::contract::$rule(&world).await;
                    }
                }
            )*
        }
    };
}

every_store! {
    stores: {
        in_memory: crate::memory::start(),
        in_consul: crate::consul::ConsulWorld::start(),
        in_kubernetes: crate::kubernetes::KubernetesWorld::start(),
        in_postgres: async { Some(crate::postgres::PostgresLocks::start().await) },
        in_mariadb: async { Some(crate::mariadb::MariadbLocks::start().await) },
    }
    rules: {
        the_holder_is_admitted_and_nobody_else,
        the_delayed_write_is_refused_though_its_owner_holds_the_lock_again,
        a_renewal_ends_no_tenure,
        a_released_lock_admits_nobody,
        a_record_that_cannot_be_read_admits_nobody_until_it_can,
        locks_of_a_template_are_read_when_they_are_asked_for,
        more_locks_than_one_read_takes_are_all_read,
        a_thousand_takeovers_refuse_no_holder,
        a_store_that_stands_still_is_an_error_in_time,
    }
}

#[cfg(feature = "zookeeper")]
every_store! {
    stores: {
        zookeeper_election: crate::zookeeper::Zoo::in_suite(fencepost_policy::Layout::Election),
        zookeeper_mutex: crate::zookeeper::Zoo::in_suite(fencepost_policy::Layout::Mutex),
        zookeeper_node: crate::zookeeper::Zoo::in_suite(fencepost_policy::Layout::Key),
    }
    rules: {
        the_holder_is_admitted_and_nobody_else,
        the_delayed_write_is_refused_though_its_owner_holds_the_lock_again,
        a_renewal_ends_no_tenure,
        a_released_lock_admits_nobody,
        a_record_that_cannot_be_read_admits_nobody_until_it_can,
        locks_of_a_template_are_read_when_they_are_asked_for,
        more_locks_than_one_read_takes_are_all_read,
        a_thousand_takeovers_refuse_no_holder,
        a_store_that_stands_still_is_an_error_in_time,
    }
}

#[cfg(feature = "zookeeper")]
every_store! {
    stores: {
        kazoo_election: crate::zookeeper_clients::Kazoo::in_suite(fencepost_policy::Layout::Election),
        kazoo_mutex: crate::zookeeper_clients::Kazoo::in_suite(fencepost_policy::Layout::Mutex),
    }
    rules: {
        the_holder_is_admitted_and_nobody_else,
        the_delayed_write_is_refused_though_its_owner_holds_the_lock_again,
        a_released_lock_admits_nobody,
    }
}

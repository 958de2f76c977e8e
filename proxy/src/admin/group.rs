//! The group that this process is a member of.

use std::time::Duration;

use fencepost_locks::{AskView, GroupView, MemberView, Membership, TrackedLock};
use fencepost_policy::group::{MemberId, Standing};
use http::StatusCode;
use serde_json::{Value, json};

use super::Admin;
use super::answers::{AdminAnswer, json_answer, text};

impl Admin {
    pub(super) fn group(&self) -> AdminAnswer {
        match self.generation.group() {
            Some(group) => json_answer(&group_json(group)),
            None => text(StatusCode::NOT_FOUND, NO_GROUP.to_owned()),
        }
    }

    /// Takes the operator's word that a member is gone, and nothing of it at the worker.
    pub(super) async fn forget_member(&self, id: &str) -> AdminAnswer {
        let Some(group) = self.generation.group() else {
            return text(StatusCode::NOT_FOUND, NO_GROUP.to_owned());
        };
        let Ok(id) = u128::from_str_radix(id, 16).map(MemberId) else {
            return text(
                StatusCode::BAD_REQUEST,
                "a member's id has 32 hexadecimal digits\n".to_owned(),
            );
        };
        if group.view().me == Some(id) {
            return text(
                StatusCode::CONFLICT,
                "that is this process: stop it instead\n".to_owned(),
            );
        }
        if group.forget(id).await {
            text(StatusCode::OK, format!("member {id} is gone, and nobody waits for it\n"))
        } else {
            text(
                StatusCode::CONFLICT,
                format!(
                    "there is no member {id}, or it has just written its key: nothing is changed\n"
                ),
            )
        }
    }
}

const NO_GROUP: &str = "this process is in no group\n";

fn group_json(group: &Membership) -> Value {
    let view = group.view();
    let GroupView { me, write_age, problem, others, asks } = &*view;
    let options = group.options();
    json!({
        "group": options.name,
        "standing": standing(group.standing()),
        "member": me.map(|me| me.to_string()),
        "host": options.host,
        "version": options.version,
        "member_ttl_seconds": options.timing.member_ttl.as_secs_f64(),
        "orphan_timeout_seconds": options.timing.orphan_timeout.as_secs_f64(),
        "write_age_seconds": write_age.map(|age| age.as_secs_f64()),
        "problem": problem,
        "members": others.iter().map(member_json).collect::<Vec<_>>(),
        "asks": asks.iter().map(|ask| ask_json(ask, others)).collect::<Vec<_>>(),
    })
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Stands => "stands",
        Standing::Lapsed => "lapsed",
        Standing::Cut => "cut",
    }
}

fn member_json(member: &MemberView) -> Value {
    json!({
        "member": member.id.to_string(),
        "host": member.host,
        "version": member.version,
        "state": member.state.name(),
        "age_seconds": member.seen_ago.as_secs_f64(),
        "over_in_seconds": member.over_in.as_ref().map(Duration::as_secs_f64),
        "unanswered_asks": member.unanswered,
    })
}

fn ask_json(ask: &AskView, members: &[MemberView]) -> Value {
    json!({
        "lock": ask.tenure.lock.key.as_str(),
        "revision": ask.tenure.revision.get(),
        "age_seconds": ask.age.as_secs_f64(),
        "waits_for": ask.waits_for.as_ref().map(|ids| waits_json(ids, members)),
    })
}

fn waits_json(ids: &[MemberId], members: &[MemberView]) -> Value {
    let wait = |id: &MemberId| {
        let member = members.iter().find(|member| member.id == *id);
        json!({
            "member": id.to_string(),
            "host": member.map(|member| &member.host),
            "over_in_seconds": member.and_then(|member| member.over_in).map(|over| over.as_secs_f64()),
        })
    };
    ids.iter().map(wait).collect()
}

/// What a group adds to what is known of a lock: whether its tenure is clear, and for whom it waits.
pub(super) fn add_group(described: &mut Value, lock: &TrackedLock, group: &Membership) {
    let view = group.view();
    let ask = view.asks.iter().rfind(|ask| ask.tenure.lock.key == *lock.key());
    described["clear"] = json!(lock.is_known_clear());
    described["waits_for"] =
        json!(ask.and_then(|ask| ask.waits_for.as_ref()).map(|ids| waits_json(ids, &view.others)));
}

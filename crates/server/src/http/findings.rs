//! What is wrong in the fleet.

use std::collections::BTreeSet;

use api::http::{
    ErrorReply, FindingAdvice, FindingChange, FindingEntry, FindingList, FindingState, TimeRange,
};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use detect::{Advice, Symptom};
use serde::Deserialize;
use table::Width;
use utoipa::IntoParams;

use super::{ApiError, PathOf, Reader, Reply, Shared};
use crate::auth::unix_s;
use crate::operator_notes::{OperatorNotes, finding_id};
use crate::watch::Found;

/// Which findings.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Of this host.
    host: Option<String>,
    /// Of this VM.
    vm: Option<String>,
    /// In this state; absent: all.
    state: Option<FindingState>,
}

impl Which {
    fn has(&self, found: &Found) -> bool {
        let mut symptoms = found.finding.symptoms.iter().map(|symptom| &symptom.series);
        let is_any =
            |wanted: &Option<String>, own: &Option<String>| wanted.is_none() || wanted == own;
        self.state.is_none_or(|state| state == state_of(found))
            && symptoms
                .any(|series| is_any(&self.host, &series.host) && is_any(&self.vm, &series.vm))
    }
}

fn state_of(found: &Found) -> FindingState {
    match found.over_s {
        None => FindingState::Open,
        Some(_) => FindingState::Over,
    }
}

/// Lists what was found in the windows since some hours before this server's start, the newest first.
#[utoipa::path(get, path = "/v1/findings", params(Which), responses(
    (status = 200, body = FindingList), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn list_findings(
    State(server): Shared,
    _: Reader,
    which: Result<Query<Which>, QueryRejection>,
) -> Reply<Json<FindingList>> {
    let Query(which) = which?;
    let (mut found, windows, late) = server.watch.findings();
    found.retain(|found| which.has(found));
    found.sort_by_key(|found| std::cmp::Reverse((found.finding.found_s, found.finding.id)));
    let (said, now_s) = (server.handled.said().await?, unix_s());
    let findings = found.iter().map(|found| entry(found, &server, &said, now_s)).collect();
    Ok(Json(FindingList { findings, windows, late }))
}

/// A finding.
#[utoipa::path(get, path = "/v1/findings/{id}", params(
    ("id" = String, Path, pattern = "^[0-9a-f]{16}$"),
), responses(
    (status = 200, body = FindingEntry), (status = 400, body = ErrorReply),
    (status = 401, body = ErrorReply), (status = 403, body = ErrorReply),
    (status = 404, body = ErrorReply, description = "there is none, or it is forgotten"),
    (status = 503, body = ErrorReply),
))]
pub(super) async fn get_finding(
    State(server): Shared,
    _: Reader,
    PathOf(id): PathOf<String>,
) -> Reply<Json<FindingEntry>> {
    let (said, now_s) = (server.handled.said().await?, unix_s());
    Ok(Json(entry(&known(&server, &id)?, &server, &said, now_s)))
}

/// The finding of this name.
pub(super) fn known(server: &crate::Server, id: &str) -> Reply<Found> {
    let found = server.watch.finding(finding_id(id)?);
    found.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "there is no such finding"))
}

/// Named in a finding.
const MAX_PLACES: usize = 8;

/// Hosts and VMs whose symptoms a finding has; a host that has VMs among them is not named again.
fn places(found: &Found) -> Vec<String> {
    let series = found.finding.symptoms.iter().map(|symptom| &symptom.series);
    let pairs: BTreeSet<_> = series.map(|series| (&series.host, &series.vm)).collect();
    let is_host =
        |host: &Option<String>| pairs.iter().all(|(other, vm)| *other != host || vm.is_none());
    let named = pairs.iter().filter_map(|(host, vm)| match (host, vm) {
        (Some(host), Some(vm)) => Some(format!("{host}/{vm}")),
        (Some(name), None) if is_host(host) => Some(name.clone()),
        _ => None,
    });
    named.take(MAX_PLACES).collect()
}

fn entry(found: &Found, server: &crate::Server, said: &OperatorNotes, now_s: u64) -> FindingEntry {
    let finding = &found.finding;
    let change = |symptom: &Symptom| {
        FindingChange::new(symptom, detect::report::measure_in_words(&symptom.series.measure))
    };
    let advice = |advice: &Advice| {
        FindingAdvice::new(advice, detect::report::action_in_words(&advice.action))
    };
    let (before, after) = TimeRange::around(finding, found.over_s);
    FindingEntry {
        id: finding.id.to_string(),
        state: state_of(found),
        found_unix_s: finding.found_s.into(),
        over_unix_s: found.over_s,
        acknowledged: said.acknowledged.get(&finding.id.to_string()).cloned(),
        silenced: said.silence(found, now_s).cloned(),
        refused: server.refused_messages.of(&finding.id.to_string()),
        places: places(found),
        summary: detect::report::cause_in_words(&finding.cause),
        text: detect::report::findings(std::slice::from_ref(finding)).text(Width::Unlimited),
        cause: finding.cause.clone().into(),
        changes: finding.symptoms.iter().map(change).collect(),
        more_changes: finding.n_more as u64,
        advice: finding.advice.iter().map(advice).collect(),
        before,
        after,
    }
}

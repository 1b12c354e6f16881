//! What other hosts and files say, fed from bytes.

use std::path::Path;
use std::time::Duration;

use api::layout::{DestinationMessage, Order, SourceMessage};
use layout::{Load, Node, Topology};

use crate::arrivals::Arrivals;
use crate::channel::{Channel, ChannelError};
use crate::{Identity, Peer, arrange, frame, offer};

/// What another host says, from its first byte on: as a source, and as a destination.
pub fn peer_said(bytes: &[u8]) {
    let (mut requested, mut counters) = (None, Err("none came".to_owned()));
    all(bytes, |message: SourceMessage| match message {
        SourceMessage::Offer(offer) => requested = offer::check_offer(&offer).ok(),
        SourceMessage::Counters(sent) => {
            counters = offer::check_counters(&sent, Duration::from_secs(60));
        }
        _ => {}
    });
    if let Some(requested) = requested {
        let node = |id: u32| Node {
            id,
            cpus: vec![id],
            total: 16 << 30,
            free: 8 << 30,
            ..Node::default()
        };
        let distances = vec![vec![10, 20], vec![20, 10]];
        let topology = Topology::new(vec![node(0), node(1)], distances, None);
        let topology = topology.expect("it is one");
        let policy = requested.policy.clone().unwrap_or_else(|| "asymsched".to_owned());
        let arrivals = Arrivals::default();
        let announced = arrivals.announce(&requested, &counters);
        let (load, number) = (Load::default(), announced.number);
        let arranged = arrange::arrange(&topology, load, &arrivals.all(), number, &policy, 1 << 30);
        if let Ok(place) = arranged.place {
            assert_eq!(place.vcpus.len(), requested.vcpus);
            assert_eq!(place.bytes(), requested.memory);
        }
    }
    all(bytes, |message: DestinationMessage| {
        if let DestinationMessage::Ready { layout, .. } | DestinationMessage::Layout(layout) =
            message
        {
            let layout = offer::check_layout(layout);
            assert!(layout.vms.len() <= layout::MAX_VMS);
        }
    });
    all(bytes, |_: Order| {});
}

/// Files of the administrator's.
pub fn files(text: &str) {
    let _ = crate::parse_peers(text);
    if let Ok(config) = crate::Config::parse(text) {
        assert!(config.incoming.iter().all(|vm| !vm.command.words().is_empty()));
    }
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    if let Ok((template, _)) = crate::Template::from_command_line(&words) {
        assert!(template.words().len() <= words.len() + 4);
    }
}

fn all<T: serde::de::DeserializeOwned>(bytes: &[u8], mut each: impl FnMut(T)) {
    let mut received = bytes.to_vec();
    loop {
        let before = received.len();
        match frame::take(&mut received) {
            Ok(Some(message)) => each(message),
            Ok(None) => break,
            // What follows nonsense can be read, unless that is too long.
            Err(_) if before == received.len() => break,
            Err(_) => {}
        }
    }
}

/// Frames that honest hosts send.
#[must_use]
pub fn honest() -> Vec<Vec<u8>> {
    use api::layout::{
        Counters, HostLayout, MigrateOrder, NodePlacement, Offer, Sample, StartedBy, VERSION,
        VmLayout,
    };
    let offer = Offer {
        vm: "web".to_owned(),
        uuid: Some("6f9619ff-8b86-d011-b42d-00cf4fc964ff".to_owned()),
        vcpus: 2,
        memory: 4 << 30,
        ran_s: 3600.0,
        policy: Some("simple".to_owned()),
        started_by: StartedBy::Daemon,
    };
    let sample = Sample { seconds: 1.0, misses: 2.8e7, instructions: Some(1e9), remote: None };
    let counters = Counters { source: "perf".to_owned(), age_s: 1.0, samples: vec![sample; 3] };
    let place =
        NodePlacement { vcpus: vec![(Some(1), 2)], memory: vec![(1, 4 << 30)], remote: 0.5 };
    let vm = VmLayout {
        name: "web".to_owned(),
        planned: Some(place.clone()),
        now: Some(place),
        ..VmLayout::default()
    };
    let layout = HostLayout { vms: vec![vm], gain: Some(0.2), ..HostLayout::default() };
    let order =
        MigrateOrder { vm: "web".to_owned(), to: "kvm2".to_owned(), policy: None, uri: None };
    let address = std::net::SocketAddr::from(([10, 0, 0, 2], 49152));
    let source = [
        frame::encode(&SourceMessage::Hello { version: VERSION }),
        frame::encode(&SourceMessage::Offer(offer)),
        frame::encode(&SourceMessage::Counters(counters)),
        frame::encode(&SourceMessage::Look),
        frame::encode(&SourceMessage::Arrived),
    ];
    let destination = [
        frame::encode(&DestinationMessage::Hello { version: VERSION }),
        frame::encode(&DestinationMessage::Ready {
            address: Some(address),
            layout: layout.clone(),
        }),
        frame::encode(&DestinationMessage::Layout(layout)),
    ];
    let user = [frame::encode(&Order::Migrate(order)), frame::encode(&Order::Cancel)];
    let joined = |frames: &[Result<Vec<u8>, frame::FrameError>]| -> Vec<u8> {
        frames.iter().flatten().flatten().copied().collect()
    };
    vec![joined(&source), joined(&destination), joined(&user)]
}

/// Says these bytes to a peer's daemon, by the identity in `state`, each after a pause; what it answers until nothing more comes
/// for so long.
///
/// # Errors
/// When it does not let us in.
pub fn converse(
    state: &Path,
    peer: &Peer,
    said: &[(Duration, Vec<u8>)],
    limit: Duration,
) -> Result<Vec<DestinationMessage>, String> {
    let identity = Identity::open(state).map_err(|error| error.to_string())?;
    let failed = |error: ChannelError| error.to_string();
    let mut channel = Channel::connect(&identity, peer).map_err(failed)?;
    let mut answers = Vec::new();
    for (pause, bytes) in said {
        std::thread::sleep(*pause);
        channel.send_bytes(bytes).map_err(failed)?;
    }
    loop {
        match channel.receive(limit) {
            Ok(DestinationMessage::Progress { .. }) => {}
            Ok(answer) => answers.push(answer),
            Err(ChannelError::TimedOut(_) | ChannelError::Closed) => return Ok(answers),
            Err(error) if answers.is_empty() => return Err(error.to_string()),
            Err(_) => return Ok(answers),
        }
        if matches!(
            answers.last(),
            Some(DestinationMessage::Ready { .. } | DestinationMessage::Refused { .. })
        ) {
            let reason = "it was a test".to_owned();
            let abandoned = SourceMessage::Abandoned { reason };
            // The refusing side has closed.
            let _ = channel.send(&abandoned);
            return Ok(answers);
        }
    }
}

/// A message as it is sent.
///
/// # Panics
/// When it is too long.
#[must_use]
pub fn frame_of(message: &impl serde::Serialize) -> Vec<u8> {
    frame::encode(message).expect("tests' messages are short")
}

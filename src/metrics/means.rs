//! What counters of drivers mean: each driver has names of its own for the same event.

/// What a counter counts, as the label `means` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    Retransmission,
    OutOfSequence,
    CnpSent,
    CnpReceived,
    Congested,
    NoBuffer,
    GaveUp,
}

impl Means {
    pub fn name(self) -> &'static str {
        match self {
            Means::Retransmission => "retransmission",
            Means::OutOfSequence => "out_of_sequence",
            Means::CnpSent => "cnp_sent",
            Means::CnpReceived => "cnp_received",
            Means::Congested => "congested",
            Means::NoBuffer => "no_buffer",
            Means::GaveUp => "gave_up",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Means::Retransmission => "packets were lost and sent again, or an answer came too late",
            Means::OutOfSequence => "packets arrived in another order, or some were missing",
            Means::CnpSent => "it asked a sender to slow down",
            Means::CnpReceived => "as a sender, it was asked so",
            Means::Congested => "packets arrived that a switch had marked (ECN)",
            Means::NoBuffer => "a receiver had nothing posted for what arrived",
            Means::GaveUp => "a queue pair ended after its last retry",
        }
    }

    pub fn of(counter: &str) -> Option<Means> {
        let all = MEANS.iter().find(|(_, names)| names.contains(&counter));
        all.map(|(means, _)| *means)
    }
}

/// Names of mlx5, bnxt_re (some of them the same since Linux 7.0), irdma, efa, ionic and rxe
/// (drivers/infiniband/hw/*, drivers/infiniband/sw/rxe/rxe_hw_counters.c).
pub const MEANS: [(Means, &[&str]); 7] = [
    (
        Means::Retransmission,
        &[
            "local_ack_timeout_err",
            "packet_seq_err",
            "implied_nak_seq_err",
            "roce_adp_retrans",
            "to_retransmits",
            "seq_err_naks_rcvd",
            "RetransSegs",
            "tcpRetransSegs",
            "retrans_pkts",
            "tx_rdma_retx_pkts",
            "completer_retry_err",
            "rcvd_seq_err",
        ],
    ),
    (
        Means::OutOfSequence,
        &["out_of_sequence", "oos_drop_count", "out_of_seq_request"],
    ),
    (
        Means::CnpSent,
        &["np_cnp_sent", "tx_cnp_pkts", "cnpSent", "tx_rdma_cnp_pkts"],
    ),
    (
        Means::CnpReceived,
        &[
            "rp_cnp_handled",
            "rx_cnp_pkts",
            "cnpHandled",
            "rx_rdma_cnp_pkts",
        ],
    ),
    (
        Means::Congested,
        &[
            "np_ecn_marked_roce_packets",
            "rx_ecn_marked_pkts",
            "RxECNMrkd",
            "rx_rdma_ecn_pkts",
        ],
    ),
    (
        Means::NoBuffer,
        &[
            "out_of_buffer",
            "rx_out_of_buffer",
            "rnr_nak_retry_err",
            "rnr_naks_rcvd",
            "rcvd_rnr_err",
        ],
    ),
    (
        Means::GaveUp,
        &[
            "max_retry_exceeded",
            "retry_exceeded_err",
            "retry_rnr_exceeded_err",
            "req_transport_retries_exceeded",
            "unresponsive_remote_events",
        ],
    ),
];

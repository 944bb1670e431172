use super::*;
use crate::lora::Lora;
use crate::model::Decoder;
use burn::tensor::Device;
use gym_protocol::job::spec::{JobFile, LoraSpec};
use std::path::Path;

const JOB: &str = "name = \"t\"\nmodel = \"m\"\ntrain = \"a\"\nheldout = \"b\"\nuse_4bit = false\n\
                   rewards = [{ name = \"numeric\" }]\n[rollout]\nmax_completion_length = 40\n[schedule]\nrounds = 1\n";

fn plan() -> Plan {
    Plan::from(&JobFile::parse(JOB).unwrap())
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name)
}

fn requirements(plan: &Plan) -> Requirements {
    let config = ModelConfig::load(&fixture("qwen3")).unwrap();
    Requirements::new(&config, plan, Place::Cpu, Work::Training { heldout: 0 }, 24)
}

#[test]
fn values_are_counted_as_the_loaded_model_has_them() {
    for name in ["qwen3", "qwen3_untied"] {
        let decoder = Decoder::load(&fixture(name), &Device::flex()).unwrap();
        let stored: usize = decoder
            .weights()
            .0
            .values()
            .map(|w| w.shape().iter().product::<usize>())
            .sum();
        for targets in [
            &["all-linear"][..],
            &["q_proj", "down_proj"],
            &["layers.1.mlp.up_proj"],
        ] {
            let spec = LoraSpec {
                target_modules: targets.iter().map(|t| (*t).to_owned()).collect(),
                ..LoraSpec::default()
            };
            let count = Count::of(decoder.config(), &spec);
            assert_eq!(count.parameters, stored as u64);
            let lora = Lora::init(&decoder, &spec, 1).unwrap();
            assert_eq!(count.trainable, lora.elements() as u64, "{targets:?}");
        }
    }
}

#[test]
fn a_large_model_is_counted_from_its_configuration() {
    // Qwen3-8B's published shapes: 8.19 B values; rank 16 on every linear layer: 43.6 M.
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 4096,
        "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu",
        "max_position_embeddings": 40_960
    });
    let config = ModelConfig::from_json(config).unwrap();
    let plan = Plan {
        quantisation: Quantisation::Nf4,
        ..plan()
    };
    let needs = Requirements::new(&config, &plan, Place::Gpu, Work::Training { heldout: 0 }, 512)
        .under(Limits::default());
    assert_eq!((needs.parameters, needs.trainable), (8_190_735_360, 43_646_976));
    // 6.95 B values in 4 bits and a little, the rest in bf16.
    assert!(
        (5.9e9..6.3e9).contains(&(needs.weights as f64)),
        "{}",
        size(needs.weights)
    );
}

#[test]
fn less_memory_gives_narrower_limits_then_checkpoints_then_an_error() {
    let needs = requirements(&plan());
    let wide = needs.fit(Limits::default(), u64::MAX).unwrap();
    assert_eq!(
        (wide.limits, wide.checkpointing, wide.narrower),
        (Limits::default(), false, false)
    );
    assert_eq!(wide.estimate, needs.under(Limits::default()));
    let least = needs
        .under(Limits {
            rollout_rows: 1,
            micro_batch_tokens: 64,
        })
        .peak;
    let between = (least + wide.estimate.peak) / 2;
    let narrow = needs.fit(Limits::default(), between).unwrap();
    assert!(narrow.estimate.peak <= between && !narrow.checkpointing);
    assert!(
        (64..8192).contains(&narrow.limits.micro_batch_tokens),
        "{narrow:?}"
    );
    let tight = needs.fit(Limits::default(), least - 1).unwrap();
    assert!(tight.checkpointing && tight.estimate.peak < least);
    let error = needs.fit(Limits::default(), 1000).unwrap_err();
    assert!(
        error.needed <= tight.estimate.peak && error.to_string().contains("1000 B"),
        "{error}"
    );
}

#[test]
fn answers_need_less_than_steps_and_more_questions_need_more() {
    let config = ModelConfig::load(&fixture("qwen3")).unwrap();
    let needs = |work| {
        Requirements::new(&config, &plan(), Place::Cpu, work, 24)
            .under(Limits::default())
            .peak
    };
    let alone = needs(Work::Evaluation { heldout: 1 });
    assert!(alone < needs(Work::Training { heldout: 1 }));
    assert!(alone < needs(Work::Evaluation { heldout: 100 }));
    let together = Limits::default().rollout_rows as u64;
    assert_eq!(
        needs(Work::Evaluation { heldout: together }),
        needs(Work::Evaluation { heldout: u64::MAX })
    );
}

#[test]
fn sizes_are_read_and_written() {
    assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
    assert_eq!(parse_size("800 MB"), Ok(800_000_000));
    assert_eq!(parse_size("4096"), Ok(4096));
    for bad in ["", "8 apples", "-1", "0", "GiB"] {
        assert!(parse_size(bad).is_err(), "{bad}");
    }
    assert_eq!(
        (size(512), size(3 << 29)),
        ("512 B".to_owned(), "1.5 GiB".to_owned())
    );
}

"""The demo `oncemore demo kfm-rules`: a STAC catalogue is polled under the KFM retry rules."""

"""Two metrics of Lightning that all ranks reduce in each step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=8,
    title="Lightning's `self.log` gets `sync_dist=True` in two places of a step",
    threads=("sb-ai-lab/RePlay#100",),
    needs=("lightning",),
    script=True,
    program="""\
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch):
        loss = self.layers(batch).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log("scale", batch.abs().mean(), on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(torch.randn(8000, 16), batch_size=8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=100, **quiet)
    trainer.fit(Module(), loader)
""",
    worse=(
        ('"loss", loss, on_step=False, on_epoch=True', '"loss", loss, on_step=True, sync_dist=True'),
        (
            '"scale", batch.abs().mean(), on_step=False, on_epoch=True',
            '"scale", batch.abs().mean(), on_step=True, sync_dist=True',
        ),
    ),
    line='self.log("loss"',
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_reduce 1 -> 3",
    trade=frozenset({"operators"}),
)
